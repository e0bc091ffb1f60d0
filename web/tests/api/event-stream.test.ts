import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError } from "../../src/api/api-error";
import { type Connection, EventStream, retryDelayMs } from "../../src/api/event-stream";
import type { ServerSentEvent } from "../../src/api/sse-parser";

/** A server whose answers the test decides, one for each connection. */
class FakeServer {
  readonly requests: { url: string; lastEventId: string | undefined }[] = [];
  readonly events: ServerSentEvent[] = [];
  readonly connections: Connection[] = [];
  signedIn = true;
  private bodies: ReadableStreamDefaultController<Uint8Array>[] = [];
  refuseWith: number | null = null;

  readonly stream = new EventStream(
    {
      signedIn: () => this.signedIn,
      open: async (url, headers, signal) => {
        this.requests.push({ url, lastEventId: headers["Last-Event-ID"] });
        if (this.refuseWith !== null) return new Response("", { status: this.refuseWith });
        const body = new ReadableStream<Uint8Array>({
          start: (controller) => {
            this.bodies.push(controller);
            signal.addEventListener("abort", () => controller.error(signal.reason));
          },
        });
        return new Response(body);
      },
      refused: async (response) => new ApiError("refused", { status: response.status }),
    },
    { onEvent: (event) => this.events.push(event), onConnection: (connection) => this.connections.push(connection) },
  );

  send(text: string): void {
    this.bodies.at(-1)!.enqueue(new TextEncoder().encode(text));
  }

  close(): void {
    this.bodies.at(-1)!.close();
  }

  states(): string[] {
    return this.connections.map((connection) => connection.state);
  }
}

let server: FakeServer;

beforeEach(() => {
  vi.useFakeTimers();
  server = new FakeServer();
});

afterEach(async () => {
  server.signedIn = false;
  server.stream.disconnect();
  await vi.advanceTimersByTimeAsync(60_000);
  vi.useRealTimers();
});

const advance = (ms: number) => vi.advanceTimersByTimeAsync(ms);

test("events are handed on, and the connection is live with the first chunk", async () => {
  void server.stream.run();
  await advance(0);
  expect(server.states()).toEqual([]);
  server.send(": hello\n\nid: 1\ndata: a\n\n");
  await advance(0);
  expect(server.states()).toEqual(["live"]);
  expect(server.events.map((event) => event.data)).toEqual(["a"]);
});

test("a connection that ends is lost, and the next one resumes after the last event", async () => {
  void server.stream.run();
  await advance(0);
  server.send("id: 41\ndata: a\n\nid: 42\ndata: b\n\n");
  await advance(0);
  server.close();
  await advance(0);
  expect(server.states()).toEqual(["live", "lost"]);
  await advance(1000);
  expect(server.requests.map((request) => request.lastEventId)).toEqual([undefined, "42"]);
});

test("25 s without a byte are a lost connection; a comment in time keeps it", async () => {
  void server.stream.run();
  await advance(0);
  server.send(": hello\n\n");
  await advance(20_000);
  server.send(": still here\n\n");
  await advance(20_000);
  expect(server.states()).toEqual(["live"]);
  await advance(6000);
  expect(server.states().slice(0, 2)).toEqual(["live", "lost"]);
});

test("watching another job reconnects at once, and nothing is lost", async () => {
  void server.stream.run();
  await advance(0);
  server.send("id: 5\ndata: a\n\n");
  await advance(0);
  server.stream.watch("j-1");
  await advance(0);
  expect(server.requests).toEqual([
    { url: "/v1/stream", lastEventId: undefined },
    { url: "/v1/stream?job=j-1", lastEventId: "5" },
  ]);
  expect(server.states()).toEqual(["live"]);
});

test("a job that was removed is not watched any more", async () => {
  server.stream.watch("j-1");
  server.refuseWith = 404;
  void server.stream.run();
  await advance(0);
  server.refuseWith = null;
  await advance(1000);
  expect(server.requests.map((request) => request.url)).toEqual(["/v1/stream?job=j-1", "/v1/stream"]);
});

test("another refusal keeps the job, and its message is the reason", async () => {
  server.stream.watch("j-1");
  server.refuseWith = 503;
  void server.stream.run();
  await advance(0);
  expect(server.connections).toMatchObject([{ state: "lost", reason: "refused" }]);
  await advance(1000);
  expect(server.requests.map((request) => request.url)).toEqual(["/v1/stream?job=j-1", "/v1/stream?job=j-1"]);
});

test("retryNow ends the wait", async () => {
  server.refuseWith = 503;
  void server.stream.run();
  await advance(0);
  server.stream.retryNow();
  await advance(0);
  expect(server.requests).toHaveLength(2);
});

test("it runs once however often it is started", async () => {
  void server.stream.run();
  void server.stream.run();
  await advance(0);
  expect(server.requests).toHaveLength(1);
});

test("signing out ends the connection, and the next token gets one that resumes nothing", async () => {
  const run = server.stream.run();
  await advance(0);
  server.send("id: 5\ndata: secret\n\n");
  await advance(0);
  server.signedIn = false;
  server.stream.disconnect();
  await run;
  server.signedIn = true;
  void server.stream.run();
  await advance(0);
  expect(server.requests.map((request) => request.lastEventId)).toEqual([undefined, undefined]);
  expect(server.states()).toEqual(["live"]);
});

test("waits double up to ten seconds, and differ by a quarter", () => {
  expect([0, 1, 2, 3, 4, 5, 50].map((failures) => retryDelayMs(failures, 0.5))).toEqual([
    500, 1000, 2000, 4000, 8000, 10_000, 10_000,
  ]);
  expect([retryDelayMs(0, 0), retryDelayMs(0, 1)]).toEqual([375, 625]);
});
