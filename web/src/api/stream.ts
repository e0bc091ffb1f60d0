/**
 * The live connection: one stream, kept up for as long as the page is open.
 *
 * `EventSource` cannot send the bearer header, so this reads the stream with `fetch`. It resumes after the last event
 * that was seen, and it tells a dead connection (nothing at all, not even a comment) from a quiet one.
 */

import { Frames, type Frame } from "./frames";
import { address, authorization, refusal, Refusal, token } from "./client";

/** The server sends at least a comment every 10 s: two and a half of them missing is a dead connection. */
const SILENCE_MS = 25_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export type Connection =
  | { state: "connecting" }
  | { state: "live"; since: number }
  | { state: "lost"; since: number; retryAt: number; why: string };

export interface Listener {
  frame(frame: Frame): void;
  connection(now: Connection): void;
}

export class Stream {
  private job: string | null = null;
  /** Grows when something else is to be watched: the connection that ends for this reason was not lost. */
  private turn = 0;
  private lastId: string | null = null;
  private control: AbortController | null = null;
  private wake: (() => void) | null = null;
  private running = false;
  private lostSince = 0;

  constructor(private readonly listener: Listener) {
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.retryNow());
  }

  /** With this job's curves from now on; null for none. */
  watch(job: string | null): void {
    if (job === this.job) return;
    this.job = job;
    this.turn++;
    this.control?.abort();
    this.retryNow();
  }

  /** Does not wait for the next attempt, if one is waited for. */
  retryNow(): void {
    this.wake?.();
  }

  async run(): Promise<void> {
    if (this.running) return;
    this.running = true;
    let failures = 0;
    while (token.value !== null) {
      const turn = this.turn;
      let why = "The server closed the connection";
      try {
        if (await this.read(this.job)) failures = 0;
      } catch (error) {
        if (error instanceof Refusal && error.status === 404) this.job = null; // The job is gone: the rest goes on.
        why = error instanceof Refusal ? error.message : "The server cannot be reached";
      }
      if (turn !== this.turn || token.value === null) continue;
      this.lostSince ||= Date.now();
      const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** failures++) * (0.75 + Math.random() / 2);
      this.listener.connection({ state: "lost", since: this.lostSince, retryAt: Date.now() + wait, why });
      await this.pause(wait);
    }
    this.running = false;
    this.lastId = null;
  }

  private pause(wait: number): Promise<void> {
    return new Promise<void>((done) => {
      const timer = setTimeout(done, wait);
      this.wake = () => {
        clearTimeout(timer);
        done();
      };
    }).then(() => {
      this.wake = null;
    });
  }

  /** Until the connection ends. True if it was ever live. */
  private async read(job: string | null): Promise<boolean> {
    const control = new AbortController();
    this.control = control;
    let watchdog = setTimeout(() => control.abort(), SILENCE_MS);
    let live = false;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream", ...authorization() };
      if (this.lastId !== null) headers["Last-Event-ID"] = this.lastId;
      const answer = await fetch(address("/v1/stream", { job }), {
        headers,
        signal: control.signal,
        cache: "no-store",
        credentials: "omit",
      });
      if (!answer.ok || answer.body === null) throw await refusal(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new Frames();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return live;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => control.abort(), SILENCE_MS);
        if (!live) {
          live = true;
          this.lostSince = 0;
          this.listener.connection({ state: "live", since: Date.now() });
        }
        for (const frame of frames.take(value)) {
          if (frame.id !== null) this.lastId = frame.id;
          this.listener.frame(frame);
        }
      }
    } catch (error) {
      if (live && !(error instanceof Refusal)) return true;
      throw error;
    } finally {
      clearTimeout(watchdog);
      control.abort();
    }
  }
}
