/** A session, and its requests. */

import { follow, type SessionEvent } from "./events.js";
import { makeId, part, unreachable, type CallOptions, type Transport } from "./http.js";
import type * as api from "./openapi.js";

/** The text of a message, or its parts. */
export type Content = api.MessageInput["content"];

/** The options of a message: all that it has beside its content. */
export type MessageOptions = Omit<api.MessageInput, "content">;

/** What a tool's result may be: a text, parts, or any other JSON value. */
export type ResultContent = api.ResultInput["content"];

/** Which entries are read. */
export type EntriesFilter = NonNullable<api.operations["readEntries"]["parameters"]["query"]>;

/** What can be sent as a file. */
export type FileContent = Blob | ArrayBuffer | Uint8Array | string;

/** What may end a wait. */
export interface Abortable {
  signal?: AbortSignal | undefined;
}

/** The longest that one request waits for an outcome, in seconds. */
const WAIT_SECONDS = 60;

/** A session of the service. Its methods throw `ClewError`. */
export class Session {
  readonly #transport: Transport;

  constructor(
    transport: Transport,
    /** The id of the session. */
    readonly id: string,
  ) {
    this.#transport = transport;
  }

  /** Send a message. It is durable when this returns; a repetition with the same `request_id` has no second effect. */
  async message(content: Content, options: MessageOptions & Abortable = {}): Promise<Request> {
    const { signal, ...fields } = options;
    const body: api.MessageInput = { ...fields, request_id: fields.request_id ?? makeId(), content };
    const answer = await this.#post<api.AcceptedRequest | api.RequestAnswer>("messages", body, { signal, repeats: true });
    return this.request(answer.request_id);
  }

  /** Send a message, and wait for its outcome and its answer. */
  async ask(content: Content, options: MessageOptions & Abortable = {}): Promise<api.RequestAnswer> {
    return (await this.message(content, options)).result({ signal: options.signal });
  }

  /** A request that was made before, by its id. */
  request(requestId: string): Request {
    return new Request(this, this.#transport, requestId);
  }

  /**
   * Follow the session from an entry on; without `from` from now on. After a cut the iteration goes on by itself. Each
   * entry comes once; of a `text` event keep the first `offset` characters that you have, as `fold` does.
   */
  async *events(options: { from?: number } & Abortable = {}): AsyncGenerator<SessionEvent, void, undefined> {
    // A place in the thread is what a stream goes on from. That of now is behind the newest entry.
    const from = options.from ?? (await this.status(options)).rev;
    const isLast = (event: SessionEvent) => event.type === "status" && event.status === "closed" && "at its end";
    yield* follow(this.#transport, { path: `${this.#path}/events`, from, isLast, signal: options.signal });
  }

  /** Send the active run a user's correction. */
  steer(content: Content, options: Omit<api.SteerInput, "content"> = {}): Promise<api.InputReceipt> {
    return this.#post("steer", { ...options, input_id: options.input_id ?? makeId(), content }, { repeats: true });
  }

  /** Send the active run a program's message. */
  inject(content: Content, options: Omit<api.SteerInput, "content"> = {}): Promise<api.InputReceipt> {
    return this.#post("inject", { ...options, input_id: options.input_id ?? makeId(), content }, { repeats: true });
  }

  /** Cancel the active request, or the one that is named. */
  cancel(options: api.CancelInput = {}): Promise<api.CancelReceipt> {
    return this.#post("cancel", options);
  }

  /** List the tool calls that wait for people or programs, in the session and in its subagents. */
  async waiting(options: Abortable = {}): Promise<api.WaitingCallRow[]> {
    return [...(await this.#get<api.WaitingCalls>("waiting", {}, options)).calls];
  }

  /** Let a tool call run that waits for a decision. */
  approve(toolCallId: string, options: Omit<api.DecisionInput, "decision"> = {}): Promise<api.ApprovalReceipt> {
    return this.#post(`approvals/${part(toolCallId)}`, { ...options, decision: "approve" });
  }

  /** Refuse a tool call that waits for a decision. The model reads the reason. */
  deny(toolCallId: string, options: Omit<api.DecisionInput, "decision" | "arguments"> = {}): Promise<api.ApprovalReceipt> {
    return this.#post(`approvals/${part(toolCallId)}`, { ...options, decision: "deny" });
  }

  /** Answer a waiting call of an external tool. */
  submitToolResult(
    toolCallId: string,
    content: ResultContent,
    options: Omit<api.ResultInput, "content"> = {},
  ): Promise<api.ToolResultReceipt> {
    return this.#post(`tool-results/${part(toolCallId)}`, { ...options, content });
  }

  /** Read what the session is doing, its configuration and its usage. */
  status(options: Abortable = {}): Promise<api.SessionStatus> {
    return this.#get("", {}, options);
  }

  /** Read the newest messages of a lane. */
  async messages(query: { limit?: number; context_ref?: string; include_system?: boolean } = {}): Promise<api.Message[]> {
    return (await this.#get<api.Messages>("messages", query)).messages;
  }

  /** Read the entries of the thread, page by page. */
  async *entries(filter: EntriesFilter = {}): AsyncGenerator<api.Entry, void, undefined> {
    let from: number | undefined = filter.from_seq;
    do {
      const page: api.EntriesList = await this.#get("entries", { ...filter, from_seq: from });
      yield* page.entries;
      from = page.next_seq;
    } while (from !== undefined);
  }

  /** Change fields of the configuration. During a run the change waits until the run ends. */
  configure(changes: api.ConfigureInput): Promise<api.ConfigureReceipt> {
    return this.#transport.call("PATCH", this.#path, { body: changes });
  }

  /** Store a file in the session. A part of a message names it: `{ type: "image", blob }`. */
  async upload(file: FileContent, options: { name?: string; mediaType?: string } & Abortable = {}): Promise<api.Blob> {
    const receipt = await this.#transport.call<api.BlobReceipt>("POST", `${this.#path}/blobs`, {
      query: { name: options.name, media_type: options.mediaType },
      bytes: file as BodyInit,
      headers: { "Content-Type": "application/octet-stream" },
      signal: options.signal,
      // The same bytes are the same blob.
      repeats: true,
    });
    return receipt.blob!;
  }

  /** Store a file in the session, past the service: it is sent to the store itself, at a signed address. */
  async uploadToStore(
    file: Blob | Uint8Array,
    options: { name?: string; mediaType?: string } & Abortable = {},
  ): Promise<api.Blob> {
    const { name, mediaType, signal } = options;
    const bytes = file instanceof Uint8Array ? file.byteLength : file.size;
    const wanted: api.UploadInput = { bytes };
    if (name !== undefined) {
      wanted.name = name;
    }
    if (mediaType !== undefined) {
      wanted.media_type = mediaType;
    }
    const upload = await this.#post<api.UploadReceipt>("uploads", wanted, { signal });
    const headers = { ...upload.headers } as Record<string, string>;
    // A browser sets the length itself, and refuses to have it set.
    delete headers["Content-Length"];
    const request: RequestInit = { method: upload.method, headers, body: file as BodyInit };
    if (signal) {
      request.signal = signal;
    }
    const sent = await fetch(upload.url, request);
    if (!sent.ok) {
      throw unreachable(new Error(`the store answers ${sent.status}`));
    }
    return (await this.#post<api.BlobReceipt>(`uploads/${part(upload.upload_id)}`, undefined, { signal })).blob!;
  }

  /** List the files that the thread names. */
  async blobs(): Promise<api.BlobRow[]> {
    return (await this.#get<api.BlobsList>("blobs")).blobs;
  }

  /** Read a file of the session. The response has the bytes. */
  readBlob(digest: string, options: Abortable = {}): Promise<Response> {
    return this.#transport.send("GET", `${this.#path}/blobs/${part(digest)}`, options);
  }

  /** Start a session that begins with this session's entries. */
  async fork(options: api.ForkInput = {}): Promise<Session> {
    const headers = { "Idempotency-Key": makeId() };
    const opened = await this.#post<api.OpenedSession>("fork", options, { headers, repeats: true });
    return new Session(this.#transport, opened.session_id);
  }

  /** Archive the session and end its workflow. Opening it, or a message, resumes it. */
  hibernate(options: api.HibernateInput = {}): Promise<api.HibernateReceipt> {
    return this.#post("hibernate", options);
  }

  /** Cancel every request, archive the session, and end it. */
  close(options: api.CloseInput = {}): Promise<api.CloseReceipt> {
    return this.#post("close", options);
  }

  /** End the session, and delete its archive and its event histories. */
  delete(): Promise<api.DeleteReceipt> {
    return this.#transport.call("DELETE", this.#path);
  }

  get #path(): string {
    return `/v1/sessions/${part(this.id)}`;
  }

  #get<T>(path: string, query: object = {}, options: Abortable = {}): Promise<T> {
    return this.#transport.call("GET", path ? `${this.#path}/${path}` : this.#path, { query, signal: options.signal });
  }

  #post<T>(path: string, body: unknown, options: CallOptions = {}): Promise<T> {
    return this.#transport.call("POST", `${this.#path}/${path}`, { ...options, body });
  }
}

/** A request of a session: a message, and what came of it. */
export class Request {
  readonly #transport: Transport;

  constructor(
    /** The session. */
    readonly session: Session,
    transport: Transport,
    /** The id of the request. */
    readonly id: string,
  ) {
    this.#transport = transport;
  }

  /** Wait for the outcome, however long it takes. Its status is never `running`. */
  async result(options: Abortable = {}): Promise<api.RequestAnswer> {
    for (;;) {
      const answer = await this.read({ ...options, wait: WAIT_SECONDS });
      if (answer.status !== "running") {
        return answer;
      }
    }
  }

  /** Read the state of the request, after at most `wait` seconds. */
  read(options: { wait?: number } & Abortable = {}): Promise<api.RequestAnswer> {
    const { wait, signal } = options;
    return this.#transport.call("GET", this.#path, { query: { wait }, signal });
  }

  /** Follow the request from its first entry to its outcome. After a cut the iteration goes on by itself. */
  events(options: Abortable = {}): AsyncGenerator<SessionEvent, void, undefined> {
    const isLast = (event: SessionEvent) =>
      event.type === "entry" && event.entry.kind === "run" && event.entry.refs.request_id === this.id && "now";
    return follow(this.#transport, { path: `${this.#path}/events`, from: null, isLast, signal: options.signal });
  }

  /** Cancel the request. */
  cancel(options: Omit<api.CancelInput, "request_id"> = {}): Promise<api.CancelReceipt> {
    return this.#transport.call("POST", `${this.#path}/cancel`, { body: options });
  }

  get #path(): string {
    return `/v1/sessions/${part(this.session.id)}/requests/${part(this.id)}`;
  }
}
