/**
 * The live connection to `/v1/stream`, kept up while the user is signed in.
 *
 * `EventSource` cannot send the bearer header, so this reads the stream with `fetch`. It resumes after the last event seen,
 * and it tells a dead connection (not even a comment arrives) from a quiet one.
 */

import { buildUrl } from "../lib/url";
import { ApiError } from "./api-error";
import { type ServerSentEvent, SseParser } from "./sse-parser";

/** The server sends at least a comment every 10 s: a connection that misses two of them is dead. */
const SILENCE_MS = 25_000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;

export type Connection =
  | { state: "connecting" }
  | { state: "live"; since: number }
  | { state: "lost"; since: number; retryAt: number; reason: string };

export interface StreamHandlers {
  onEvent(event: ServerSentEvent): void;
  onConnection(connection: Connection): void;
}

/** How the stream reaches the server. Given from outside, so that tests need no browser. */
export interface StreamTransport {
  signedIn(): boolean;
  open(url: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response>;
  refused(response: Response): Promise<ApiError>;
}

/** Doubles from half a second to ten, ± 25% so that many pages do not return at the same moment. */
export function retryDelayMs(failures: number, random: number = Math.random()): number {
  return Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** failures) * (0.75 + random / 2);
}

export class EventStream {
  private job: string | null = null;
  /** Incremented when another job is watched: a connection that ends for this reason is not lost. */
  private subscription = 0;
  private lastId: string | null = null;
  private connectionAbort: AbortController | null = null;
  private endWait: (() => void) | null = null;
  private running = false;
  private lostSince = 0;

  constructor(
    private readonly transport: StreamTransport,
    private readonly handlers: StreamHandlers,
  ) {}

  /** Also streams the metrics of this job from now on; null for no job. */
  watch(job: string | null): void {
    if (job === this.job) return;
    this.job = job;
    this.subscription++;
    this.connectionAbort?.abort();
    this.retryNow();
  }

  /** Ends the connection when the user signs out: the next token gets a connection of its own. */
  disconnect(): void {
    this.lastId = null;
    this.subscription++;
    this.connectionAbort?.abort();
    this.retryNow();
  }

  /** Ends the wait before the next attempt, if there is one. */
  retryNow(): void {
    this.endWait?.();
  }

  /** Connects again and again until the user signs out. Does nothing if it runs already. */
  async run(): Promise<void> {
    if (this.running) return;
    this.running = true;
    let failures = 0;
    while (this.transport.signedIn()) {
      const subscription = this.subscription;
      const { wasLive, reason } = await this.connect();
      if (wasLive) failures = 0;
      if (subscription !== this.subscription || !this.transport.signedIn()) continue;
      this.lostSince ||= Date.now();
      const delay = retryDelayMs(failures++);
      this.handlers.onConnection({ state: "lost", since: this.lostSince, retryAt: Date.now() + delay, reason });
      await this.wait(delay);
    }
    this.running = false;
    this.lastId = null;
  }

  private wait(ms: number): Promise<void> {
    return new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.endWait = () => {
        clearTimeout(timer);
        resolve();
      };
    }).then(() => {
      this.endWait = null;
    });
  }

  /** Holds one connection until it ends, and says why it ended. */
  private async connect(): Promise<{ wasLive: boolean; reason: string }> {
    const abort = new AbortController();
    this.connectionAbort = abort;
    let watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    let wasLive = false;
    try {
      for await (const chunk of this.chunks(abort.signal)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
        if (!wasLive) this.setLive();
        wasLive = true;
        for (const event of chunk) this.dispatch(event);
      }
      return { wasLive, reason: "The server closed the connection" };
    } catch (error) {
      if (wasLive) return { wasLive, reason: "The connection to the server broke" };
      if (!(error instanceof ApiError)) return { wasLive, reason: "The server cannot be reached" };
      if (error.status === 404) this.job = null; // The job was removed: watch everything else.
      return { wasLive, reason: error.message };
    } finally {
      clearTimeout(watchdog);
      abort.abort();
    }
  }

  /** The events of each chunk that arrives, possibly none. */
  private async *chunks(signal: AbortSignal): AsyncGenerator<ServerSentEvent[]> {
    const resume: Record<string, string> = this.lastId === null ? {} : { "Last-Event-ID": this.lastId };
    const url = buildUrl("/v1/stream", { job: this.job });
    const response = await this.transport.open(url, { Accept: "text/event-stream", ...resume }, signal);
    if (!response.ok || response.body === null) throw await this.transport.refused(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield parser.push(value);
    }
  }

  private setLive(): void {
    this.lostSince = 0;
    this.handlers.onConnection({ state: "live", since: Date.now() });
  }

  private dispatch(event: ServerSentEvent): void {
    if (event.id !== null) this.lastId = event.id;
    this.handlers.onEvent(event);
  }
}
