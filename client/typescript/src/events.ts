/** The events of a session, and the stream of them, which goes on by itself after a cut. */

import { ClewError, pause, unreachable, type Transport } from "./http.js";
import type { ErrorDetail, StreamDrained, StreamFailed, SessionEvent as StreamedEvent } from "./openapi.js";

/** An event of a session: one union, by `type`. */
export type SessionEvent = Exclude<StreamedEvent, StreamDrained | StreamFailed>;

/** Where a stream begins and ends. */
export interface StreamPlan {
  path: string;
  /** The first entry; null: the stream is that of a request, and always begins with the request's first entry. */
  from: number | null;
  /** Whether the stream is over after an event, or when the service then ends it. */
  isLast: (event: SessionEvent) => "now" | "at its end" | false;
  signal?: AbortSignal | undefined;
}

/** The service sends a comment every 15 seconds: after three times that without anything, the connection is dead. */
const SILENCE_SECONDS = 45;
const FIRST_PAUSE_SECONDS = 0.5;
const MOST_PAUSE_SECONDS = 10;

/**
 * Follow a stream until its end. After a cut, a restart of the service or a silence it connects again and goes on behind
 * the last entry, so that each entry comes once.
 */
export async function* follow(transport: Transport, plan: StreamPlan): AsyncGenerator<SessionEvent, void, undefined> {
  let next = plan.from;
  let seen = -1;
  let failures = 0;
  for (;;) {
    const connection = new Connection(plan.signal);
    let wait = 0;
    let isOver = false;
    try {
      const headers = { Accept: "text/event-stream" };
      const query = next === null ? {} : { from_seq: next };
      const response = await transport.send("GET", plan.path, { headers, query, signal: connection.signal, repeats: false });
      for await (const block of connection.read(response)) {
        wait = block.retry ?? wait;
        if (block.data === "") {
          continue;
        }
        failures = 0;
        const event = JSON.parse(block.data) as StreamedEvent;
        if (event.type === "draining") {
          isOver = false;
          break;
        }
        if (event.type === "error") {
          throw new ClewError(event.error as ErrorDetail, 0, isPassing(event.error.code) ? 0 : null);
        }
        if (event.type === "entry") {
          if (event.seq <= seen) {
            continue;
          }
          seen = event.seq;
          next = next === null ? null : event.seq + 1;
        }
        yield event;
        const last = plan.isLast(event);
        if (last === "now") {
          return;
        }
        isOver = event.type === "status" ? last === "at its end" : isOver;
      }
      if (isOver) {
        return;
      }
    } catch (error) {
      plan.signal?.throwIfAborted();
      const failure = error instanceof ClewError ? error : unreachable(error);
      if (failure.retrySeconds === null) {
        throw failure;
      }
      wait = Math.max(failure.retrySeconds, Math.min(FIRST_PAUSE_SECONDS * 2 ** failures, MOST_PAUSE_SECONDS));
      failures += 1;
    } finally {
      connection.close();
    }
    await pause(wait || FIRST_PAUSE_SECONDS, plan.signal);
  }
}

/** Whether a failed stream goes on when it is read again. */
function isPassing(code: string): boolean {
  return ["archive_unavailable", "draining", "server_unreachable", "starting", "worker_unavailable"].includes(code);
}

/** A block of a stream. */
interface Block {
  data: string;
  /** After how many seconds a client connects again. */
  retry: number | undefined;
}

/** One connection of a stream. It ends when nothing comes, and when the caller's signal aborts. */
class Connection {
  readonly #control = new AbortController();
  readonly #outer: AbortSignal | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(outer: AbortSignal | undefined) {
    this.#outer = outer;
    outer?.throwIfAborted();
    outer?.addEventListener("abort", this.#stop, { once: true });
    this.#wait();
  }

  get signal(): AbortSignal {
    return this.#control.signal;
  }

  readonly #stop = (): void => this.#control.abort(this.#outer?.reason);

  #wait(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#control.abort(new Error("the stream is silent")), SILENCE_SECONDS * 1000);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#stop);
    this.#control.abort();
  }

  /** Read the blocks of a response. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html */
  async *read(response: Response): AsyncGenerator<Block, void, undefined> {
    const reader = response.body!.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, BufferSource>).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      this.#wait();
      text += value;
      const blocks = text.split(/\r\n\r\n|\n\n|\r\r/);
      text = blocks.pop() ?? "";
      for (const block of blocks) {
        yield readBlock(block);
      }
    }
  }
}

function readBlock(block: string): Block {
  const data: string[] = [];
  let retry: number | undefined;
  for (const line of block.split(/\r\n|\n|\r/)) {
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (name === "data") {
      data.push(value);
    } else if (name === "retry") {
      retry = Number(value) / 1000;
    }
  }
  return { data: data.join("\n"), retry };
}
