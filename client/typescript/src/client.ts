/** The client of a service. */

import { makeId, part, Transport, type ClientOptions } from "./http.js";
import type * as api from "./openapi.js";
import { Session } from "./session.js";

/** Which sessions are listed. */
export type SessionsFilter = Omit<NonNullable<api.operations["listSessions"]["parameters"]["query"]>, "limit" | "offset">;

/** The configuration of a session that is opened. */
export type OpenOptions = Omit<api.OpenInput, "session_id">;

const PAGE = 100;

/** A service, with a key of a tenant. */
export class Clew {
  /** Messages by cron or in intervals. */
  readonly schedules: Schedules;
  readonly #transport: Transport;

  constructor(options: ClientOptions) {
    this.#transport = new Transport(options);
    this.schedules = new Schedules(this.#transport);
  }

  /** Start the session with this configuration, or resume it with the one that it has. */
  async open(sessionId: string, options: OpenOptions = {}): Promise<Session> {
    await this.#transport.call("PUT", `/v1/sessions/${part(sessionId)}`, { body: options });
    return this.session(sessionId);
  }

  /** Start a session whose id the service makes. */
  async create(options: OpenOptions): Promise<Session> {
    const headers = { "Idempotency-Key": makeId() };
    const request = { body: options, headers, repeats: true };
    return this.session((await this.#transport.call<api.OpenedSession>("POST", "/v1/sessions", request)).session_id);
  }

  /** A session that was opened before, by its id. Nothing is sent. */
  session(sessionId: string): Session {
    return new Session(this.#transport, sessionId);
  }

  /** List the tenant's sessions, page by page: live ones, the newest first, then those that only the archive has. */
  async *sessions(filter: SessionsFilter = {}): AsyncGenerator<api.SessionSummary, void, undefined> {
    for (let offset = 0; ; offset += PAGE) {
      const query = { ...filter, limit: PAGE, offset };
      const page = await this.#transport.call<api.SessionsList>("GET", "/v1/sessions", { query });
      yield* page.sessions;
      if (!page.has_more) {
        return;
      }
    }
  }

  /** List the agents that the key may use. */
  async agents(): Promise<api.AgentSummary[]> {
    return [...(await this.#transport.call<api.AgentsList>("GET", "/v1/agents")).agents];
  }
}

/** The schedules of a tenant: messages to sessions by cron or in intervals. */
export class Schedules {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Make a schedule. It needs `cron` or `every_seconds`, and `session_id` or `session_prefix`. */
  create(schedule: api.ScheduleInput): Promise<api.ScheduleState> {
    return this.#transport.call("POST", "/v1/schedules", { body: schedule });
  }

  /** List the schedules. The list is a second or so late. */
  async list(): Promise<api.ScheduleRow[]> {
    return [...(await this.#transport.call<api.SchedulesList>("GET", "/v1/schedules")).schedules];
  }

  /** Read a schedule: its times, its message, and the newest requests. */
  read(scheduleId: string): Promise<api.ScheduleState> {
    return this.#transport.call("GET", this.#path(scheduleId));
  }

  /** Change a schedule: what is left out stays. */
  change(scheduleId: string, changes: api.ScheduleChange): Promise<api.ScheduleState> {
    return this.#transport.call("PATCH", this.#path(scheduleId), { body: changes });
  }

  /** Let a schedule start nothing until it is resumed. */
  pause(scheduleId: string, options: api.PauseInput = {}): Promise<api.ScheduleState> {
    return this.#transport.call("POST", `${this.#path(scheduleId)}/pause`, { body: options });
  }

  /** Let a paused schedule go on. */
  resume(scheduleId: string, options: api.PauseInput = {}): Promise<api.ScheduleState> {
    return this.#transport.call("POST", `${this.#path(scheduleId)}/resume`, { body: options });
  }

  /** Send the message of a schedule now, also if the schedule is paused. */
  trigger(scheduleId: string, options: api.TriggerInput = {}): Promise<api.ScheduleState> {
    return this.#transport.call("POST", `${this.#path(scheduleId)}/trigger`, { body: options });
  }

  /** Delete a schedule. Requests that run go on, and the sessions stay. */
  delete(scheduleId: string): Promise<api.ScheduleRow> {
    return this.#transport.call("DELETE", this.#path(scheduleId));
  }

  #path(scheduleId: string): string {
    return `/v1/schedules/${part(scheduleId)}`;
  }
}
