/** The client of `clew serve`: durable sessions of LLM agents, over HTTP. */

export { Clew, Schedules, type OpenOptions, type SessionsFilter } from "./client.js";
export type { SessionEvent } from "./events.js";
export { ClewError, type ClientOptions } from "./http.js";
export type * as api from "./openapi.js";
export {
  Request,
  Session,
  type Content,
  type EntriesFilter,
  type FileContent,
  type MessageOptions,
  type ResultContent,
} from "./session.js";
export { EMPTY_VIEW, fold, type Call, type Ending, type Message, type SessionView } from "./view.js";
