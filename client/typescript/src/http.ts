/** Requests to the service: their errors, and their repetition. */

import type { ErrorDetail } from "./openapi.js";

/** What a client is made with. */
export interface ClientOptions {
  /** The address of the service, such as `https://clew.example.com`; in a page also a path of its own origin. */
  baseUrl: string;
  /** The key, or what finds it before each request. Absent: what stands before the service adds it. */
  key?: string | (() => string | Promise<string>);
  /** What sends requests; absent: the global `fetch`. */
  fetch?: typeof fetch;
}

/** A request that was refused, or has failed. */
export class ClewError extends Error {
  /** The contract's word, such as `busy`; `unreachable` if the service does not answer. */
  readonly code: string;
  /** The status of the response; 0: there is none. */
  readonly status: number;
  /** The field or the parameter that it is about; null: none. */
  readonly param: string | null;
  /** The seconds after which the request may be repeated; null: a repetition does not help. */
  readonly retrySeconds: number | null;

  constructor(detail: ErrorDetail, status: number, retrySeconds: number | null = null, cause?: unknown) {
    super(detail.message, cause === undefined ? undefined : { cause });
    this.name = "ClewError";
    this.code = detail.code;
    this.param = detail.param;
    this.status = status;
    this.retrySeconds = retrySeconds;
  }
}

/** What a request has beside its path. */
export interface CallOptions {
  query?: object;
  /** A JSON value, or with `bytes` the body itself. */
  body?: unknown;
  bytes?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Whether a repetition has no second effect: the request is repeated while the service is away. */
  repeats?: boolean;
}

/** How often a request is sent that may be repeated. */
const ATTEMPTS = 5;
const FIRST_PAUSE_SECONDS = 0.5;

/** Sends requests to a service. */
export class Transport {
  readonly #options: ClientOptions;

  constructor(options: ClientOptions) {
    this.#options = options;
  }

  /** Call a route, and return the JSON of its answer. */
  async call<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
    return (await (await this.send(method, path, options)).json()) as T;
  }

  /** Send a request, and return the response, whose status is that of a success. */
  async send(method: string, path: string, options: CallOptions = {}): Promise<Response> {
    const repeats = options.repeats ?? (method === "GET" || method === "PUT");
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#sendOnce(method, path, options);
      } catch (error) {
        if (!(error instanceof ClewError) || error.retrySeconds === null || !repeats || attempt === ATTEMPTS) {
          throw error;
        }
        await pause(Math.max(error.retrySeconds, FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)), options.signal);
      }
    }
  }

  async #sendOnce(method: string, path: string, options: CallOptions): Promise<Response> {
    const { baseUrl, key, fetch: send = globalThis.fetch } = this.#options;
    const headers: Record<string, string> = { ...options.headers };
    const token = typeof key === "function" ? await key() : key;
    if (token !== undefined) {
      headers["Authorization"] = `Bearer ${token}`;
    }
    const request: RequestInit = { method, headers };
    if (options.bytes !== undefined) {
      request.body = options.bytes;
    } else if (options.body !== undefined) {
      headers["Content-Type"] = "application/json";
      request.body = JSON.stringify(options.body);
    }
    if (options.signal) {
      request.signal = options.signal;
    }
    let response: Response;
    try {
      response = await send(baseUrl.replace(/\/+$/, "") + path + encodeQuery(options.query), request);
    } catch (error) {
      options.signal?.throwIfAborted();
      throw unreachable(error);
    }
    if (!response.ok) {
      throw await readError(response);
    }
    return response;
  }
}

/** The error of a service that does not answer. */
export function unreachable(cause: unknown): ClewError {
  const message = `the service does not answer: ${cause instanceof Error ? cause.message : String(cause)}`;
  return new ClewError({ type: "unreachable", code: "unreachable", message, param: null }, 0, 0, cause);
}

/** Wait for some seconds, or until the signal aborts, which throws its reason. */
export function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Make an id that nothing else has. Pages without TLS have no `crypto.randomUUID`. */
export function makeId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, "0")).join("");
}

/** Encode a part of a path. */
export function part(name: string): string {
  return encodeURIComponent(name);
}

function encodeQuery(query: object = {}): string {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  return set.length ? `?${new URLSearchParams(set.map(([name, value]) => [name, String(value)]))}` : "";
}

async function readError(response: Response): Promise<ClewError> {
  const wait = response.headers.get("Retry-After");
  let detail: ErrorDetail | undefined;
  try {
    detail = ((await response.json()) as { error?: ErrorDetail }).error;
  } catch {
    // A proxy's answer has another form.
  }
  // What stands before the service answers so while a process is replaced.
  const isAway = detail === undefined && [502, 503, 504].includes(response.status);
  detail ??= { type: "http_error", code: "http_error", message: `the status ${response.status}`, param: null };
  return new ClewError(detail, response.status, wait !== null ? Number(wait) || 0 : isAway ? 0 : null);
}
