// The wire contract of Clew. Made from the code by `make pages`; docs/contract.md says what it means.

/** The updates of `AgentSession`. */
export interface Updates {
  message: { input: MessageInput; output: RequestOutcome };
  await_request: { input: AwaitRequestInput; output: RequestOutcome };
  submit_input: { input: SubmitInput; output: InputReceipt };
  submit_context_operation: { input: ContextOperation; output: OperationReceipt };
  configure: { input: ConfigureInput; output: ConfigureReceipt };
  cancel_request: { input: CancelInput | undefined; output: CancelReceipt };
  resolve_approval: { input: ApprovalInput; output: ApprovalReceipt };
  submit_tool_result: { input: ToolResultInput; output: ToolResultReceipt };
  summarize: { input: SummarizeInput | undefined; output: SummaryReceipt };
  checkpoint: { input: CheckpointInput | undefined; output: CheckpointReceipt };
  hibernate: { input: HibernateInput | undefined; output: HibernateReceipt };
  close_session: { input: CloseInput | undefined; output: CloseReceipt };
}

/** The signals of `AgentSession`. */
export interface Signals {
  steer: { input: SteerInput; output: undefined };
  inject: { input: SteerInput; output: undefined };
  modify_context: { input: ContextOperation; output: undefined };
  cancel: { input: CancelInput | undefined; output: undefined };
  close: { input: CloseInput | undefined; output: undefined };
  move: { input: MoveInput | undefined; output: undefined };
  forked: { input: ForkedInput; output: undefined };
  late_result: { input: LateResultInput; output: undefined };
  subagent_result: { input: SubagentResultInput; output: undefined };
}

/** The queries of `AgentSession`. */
export interface Queries {
  status: { input: undefined; output: SessionStatus };
  context: { input: ContextQuery | undefined; output: ContextPage };
  transcript: { input: TranscriptQuery | undefined; output: TranscriptPage };
  window: { input: WindowQuery | undefined; output: Window };
  entries: { input: EntriesQuery | undefined; output: EntriesPage };
  follow: { input: FollowQuery | undefined; output: FollowPage };
}

/** The workflow types. */
export interface Workflows {
  AgentSession: { input: SessionStart; output: SessionEnd };
  ReadThread: { input: ReadThreadInput; output: EntriesPage };
  ReadContext: { input: ReadContextInput; output: ContextPage };
  ForkSession: { input: ForkSessionInput; output: ForkReceipt };
  RestoreSession: { input: RestoreInput; output: RestoreReceipt };
  DeleteSession: { input: DeleteSessionInput; output: DeleteReceipt };
  ListSessions: { input: ListSessionsInput; output: SessionsPage };
  ListAgents: { input: ListAgentsInput; output: AgentsList };
  PutBlob: { input: PutBlobInput; output: BlobReceipt };
  GetBlob: { input: GetBlobInput; output: BlobPage };
  StartUpload: { input: StartUploadInput; output: UploadReceipt };
  FinishUpload: { input: FinishUploadInput; output: BlobReceipt };
  SendMessage: { input: SendMessageInput; output: SendMessageReceipt };
}

/** An agent that a worker has. */
export interface AgentSummary {
  /** The name. */
  name: string;
  /** The version: a digest of its configuration, its tools and its label. */
  version: string;
  /** The label of its author. */
  label?: string;
  /** The model. */
  model?: string;
}

/** An agent as a worker has resolved it. */
export interface AgentVersion {
  /** The name of the agent. */
  name: string;
  /** The digest of the agent's configuration, its tools and its label. */
  version: string;
  /** The label that the agent's author gave the version. */
  label?: string;
}

/** The agents of a worker. */
export interface AgentsList {
  /** The agents, by their names. */
  agents: Array<AgentSummary>;
  /** The names of the providers that its models may have. Absent: they are the operator's to know. */
  providers?: Array<string>;
}

/** An entry of the kind `ai_context_operation`. */
export interface AiContextOperationEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "ai_context_operation";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: OperationPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** An entry of the kind `ai_message`. */
export interface AiMessageEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "ai_message";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: AssistantMessage | ToolMessage | UserMessage;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/**
 * A run has ended that corrected an answer: later contexts show neither the answer nor the correction.
 *
 * Only sessions apply it.
 */
export interface AppliedCorrected {
  /** Names the operation. */
  type: "corrected";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
  /** The seq of the answer, or of its first part. */
  from_seq: number;
  /** The seq of the correction. */
  to_seq: number;
}

/** The lane's latest compaction was undone. */
export interface AppliedExpand {
  /** Names the operation. */
  type: "expand";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
}

/** Messages of the lane were pinned. */
export interface AppliedPin {
  /** Names the operation. */
  type: "pin";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
  /** The seqs of the messages. */
  seqs: Array<number>;
}

/** A snapshot was put under the lane. */
export interface AppliedReplace {
  /** Names the operation. */
  type: "replace";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
  /** The snapshot. */
  result_context: StoredSnapshot;
  /** The lane's messages after this seq follow the snapshot; absent: those after the operation. */
  base_seq?: number;
  /** The requests that were sent for the summary of a compaction; absent: a caller has sent the context. */
  recipe?: SummaryRecipe;
}

/** The lane was made the active one. */
export interface AppliedSwitch {
  /** Names the operation. */
  type: "switch";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
}

/** Messages of the lane were unpinned. */
export interface AppliedUnpin {
  /** Names the operation. */
  type: "unpin";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
  /** The seqs of the messages. */
  seqs: Array<number>;
}

/**
 * A request's messages were withdrawn that no hook had accepted: no context shows them, and no summary has them.
 *
 * Only sessions apply it.
 */
export interface AppliedWithdraw {
  /** Names the operation. */
  type: "withdraw";
  /** `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted; `system`: Clew itself applied it. */
  reason: "manual" | "restore" | "compaction" | "system";
  /** The JSON that the caller sent with it. */
  meta?: Record<string, unknown>;
  /** The user's messages of the lane from this seq up to the operation are withdrawn. */
  from_seq: number;
}

/** An entry of the kind `approval`. */
export interface ApprovalEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "approval";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: ApprovalPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/**
 * The argument of the update `resolve_approval`.
 *
 * An approved call runs at once, beside the other calls of its reply. With `approval_scope` or `requires_approval`
 * as `round`, all calls of the reply wait for the last decision. Where hooks check calls, an approved call waits
 * until the calls that run have returned. Edited arguments over the bound are refused with `too_large`, and the call
 * still waits.
 */
export interface ApprovalInput {
  /** The call. */
  tool_call_id: string;
  /** Whether the tool may run. */
  decision: "approve" | "deny";
  /** For people; the model reads it if the call is denied. */
  reason?: string | null;
  /** The person that decided, as the caller says: a name or an id. The entry has it, and no model reads it. */
  by?: string | null;
  /** The arguments that replace the model's; only with `approve`. Those of one reply's calls have at most 524 288 bytes together. */
  arguments?: Record<string, unknown> | null;
  /** Settings of the run from its next model call on; absent: it goes on with those that it has. */
  settings?: RunSettings | null;
}

/** A person's decision about a tool call. */
export interface ApprovalPayload {
  /** The call. */
  tool_call_id: string;
  /** Whether the tool may run. */
  decision: "approve" | "deny";
  /** The reason that the person gave. */
  reason?: string;
  /** The person that decided, as the caller said. */
  by?: string;
  /** The arguments that replace the model's. */
  arguments?: Record<string, unknown>;
  /** The settings of the run from here on (`RunSettings`); absent: it went on with those that it had. */
  settings?: Record<string, unknown>;
}

/** A decision about a tool call was accepted. */
export interface ApprovalReceipt {
  /** The call. */
  tool_call_id: string;
  /** The decision. */
  decision: "approve" | "deny";
}

/**
 * A model's reply.
 *
 * The reply of a call that is cancelled, or that fails and is not repeated, is `interrupted`: its text so far,
 * without tool calls and reasoning. Contexts show it with a note at its end, and it is never the answer of its
 * request. If the worker was lost, it has the newest 32 768 characters of the last heartbeat. Its usage is an
 * estimate where the provider has reported none. The text of a reply that the provider refused (`content_refused`)
 * is not kept.
 */
export interface AssistantMessage {
  /** The lane. */
  context_ref: string;
  /** The speaker. */
  role: "assistant";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The request that the message belongs to. */
  request_id?: string;
  /** The run that the message belongs to. */
  run_id?: string;
  /** Tokens of each image, recording and file of `content`; absent where it has none. */
  media_tokens?: Array<number>;
  /** The tool calls, with ids that are unique in the thread. */
  tool_calls?: Array<ToolCall>;
  /** The text of the model's reasoning; no context shows it. */
  thinking?: string;
  /** Blocks that go back to the provider verbatim. */
  provider_data?: ProviderData;
  /** The calls of tools that the provider ran itself, in order. */
  provider_calls?: Array<ProviderCall>;
  /** The sources that the reply names. */
  citations?: Array<Citation>;
  /** The call was cancelled, or failed, before the reply was complete: `content` is what had arrived. */
  interrupted?: boolean;
  /** The recipe of the model call. */
  recipe?: Recipe;
}

/** A recording. */
export interface AudioPart {
  /** Always `audio`. */
  type: "audio";
  /** The blob. */
  blob: Blob;
}

/** The argument of the update `await_request`. */
export interface AwaitRequestInput {
  /** The request. */
  request_id: string;
}

/** The description of bytes in the archive. The bytes are never in a message. */
export interface Blob {
  /** SHA-256 of the bytes, as 64 hexadecimal digits. */
  digest: string;
  /** The type of the bytes, such as `image/png`. */
  media_type: string;
  /** Their number. */
  bytes: number;
  /** The name of the file. */
  name?: string;
  /** Pixels of an image from left to right. */
  width?: number;
  /** Pixels of an image from top to bottom. */
  height?: number;
  /** Pages of a document. */
  pages?: number;
  /** Length of audio. */
  seconds?: number;
}

/** A page of the bytes of a blob. */
export interface BlobPage {
  /** The description of the blob, without a name: messages name it. */
  blob: Blob;
  /** The bytes of the page in base64. */
  data: string;
  /** The `offset` of the next page; absent: there is none. */
  next_offset?: number;
}

/** A chunk was stored, or an upload was finished. */
export interface BlobReceipt {
  /** The description of the blob, which a part of a message names; absent: the blob is not complete. */
  blob?: Blob;
}

/**
 * The argument of the update `cancel_request` and of the signal `cancel`.
 *
 * The answer comes at once. If a reply is being streamed, the run ends when its worker has stopped and said what it
 * had read: within half a second, or within 8 seconds if the worker is lost. Until then `status` is `stopping`, and
 * other updates and signals wait. To cancel a request that joined a run cancels the run.
 */
export interface CancelInput {
  /** The request; absent: the one that is running, or the summary that is being written. */
  request_id?: string | null;
  /** For people; the outcome and the thread have it. */
  reason?: string | null;
  /** Whether inputs that the run has not read are dropped, or a follow-up run answers them. */
  inputs?: "drop" | "follow_up";
}

/** A cancellation was accepted. */
export interface CancelReceipt {
  /** The cancelled request; empty if a summary was cancelled. */
  request_id: string;
  /** Whether the request was cancelled; false if it had ended. */
  cancelled: boolean;
}

/** The argument of the update `checkpoint`. */
export interface CheckpointInput {
  /** The lane; absent: the active one. */
  context_ref?: string | null;
  /** The token expires after this many seconds; 30 days by default. */
  expires_seconds?: number;
}

/** A lane's context and the session's configuration, signed. */
export interface CheckpointReceipt {
  /** The argument of `RestoreSession`: `rt2.<payload>.<signature>`. */
  token: string;
}

/** A source that a reply names for a part of its text. */
export interface Citation {
  /** The address of the page. */
  url: string;
  /** Its title. */
  title?: string;
  /** The words of the page; at most 500 characters. */
  quote?: string;
  /** The first character of the part of the reply's text. */
  start?: number;
  /** The character after the last one of that part. */
  end?: number;
}

/**
 * Replace older images, recordings and files by markers. A part that is not larger than its marker stays.
 *
 * The messages that the next reply answers keep theirs.
 */
export interface ClearMedia {
  /** The number of newest parts that stay. */
  keep: number;
  /** The fewest tokens that clearing must free; below that, all parts stay. */
  min_tokens?: number;
}

/** Replace older tool results by a marker. A result that is not larger than the marker stays. */
export interface ClearToolResults {
  /** The number of newest results that stay. */
  keep: number;
  /** The fewest tokens that clearing must free; below that, all results stay. */
  min_tokens?: number;
  /** The tools whose results stay. */
  exclude_tools?: Array<string>;
}

/**
 * The argument of the update `close_session` and of the signal `close`.
 *
 * It cancels all requests, archives all entries and completes the workflow. If the archive cannot be written in
 * time, the answer is `archive_unavailable`: the session is closed, and ends once the archive is available. Send the
 * update again to wait for that.
 */
export interface CloseInput {
  /** For people; the thread has it. */
  reason?: string | null;
}

/** The session has ended, and the archive has all of it. */
export interface CloseReceipt {
  /** The thread's last entry; -1 if the session ended before it had read its archive, which is unchanged. */
  last_seq: number;
}

/** An entry of the kind `config`. */
export interface ConfigEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "config";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: ConfigPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** The configuration in force from this entry on, complete, so that no later default can change it. */
export interface ConfigPayload {
  /** The agent whose configuration it is; absent: the session has none, or no worker has resolved it yet. */
  agent?: AgentVersion;
  /** Whether the session keeps this version of the agent and these schemas. */
  pin?: boolean;
  /** The model, as `provider:model`; empty: it is the agent's, and no worker has resolved the agent yet. */
  model: string;
  /** The loop of a run: `react`. */
  strategy: string;
  /** The system prompt. */
  system_prompt: string | null;
  /** The schemas of the tools, as the worker resolved them, and of those that callers have defined. */
  tools: Array<ToolSpec>;
  /** The tools whose calls wait for a person's decision. */
  require_approval: Array<string>;
  /** The context policy (`ContextPolicy`), with every field. */
  context_policy: Record<string, unknown>;
  /** The options of model calls (`ModelOptions`) that are set. */
  model_options: Record<string, unknown>;
  /** The most model calls of a run. */
  max_iterations: number;
  /** The longest time of a request, in seconds. */
  request_timeout_seconds: number;
  /** How the session treats a message while it serves a request. */
  on_busy: "reject" | "queue" | "interrupt" | "steer";
  /** When inputs enter a run: with its answer, or before its next model call. */
  steering: "terminal" | "step";
  /** The encoding that tokens are counted under. */
  encoding: string;
  /** The limits (`Limits`) that are set. */
  limits: Record<string, unknown>;
  /** The session hibernates after this many seconds without work. */
  idle_timeout_seconds: number | null;
  /** The session's metadata. */
  metadata: Record<string, string>;
  /** The models that a run tries while its model has an outage. */
  fallbacks?: Array<string>;
  /** The tools that the model's provider runs itself. */
  provider_tools?: Array<string>;
  /** Which calls the workers take first: 1 the first, 5 the last. */
  priority?: number;
  /** Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply until the last decision (`round`). */
  approval_scope?: "call" | "round";
  /** The URLs that are told of events of the session (`Webhook`). */
  webhooks?: Array<Record<string, unknown>>;
  /** The names of the tools as the configuration has them; absent: those of the schemas, without `read_result`, `view_blob` and `external_tools`. */
  tool_names?: Array<string>;
  /** The tools that callers have defined (`ExternalToolSpec`); absent: none. */
  external_tools?: Array<Record<string, unknown>>;
  /** What callers have set over the agent's configuration (`SessionConfig`), where the session has an agent; without `external_tools`, which all are theirs. */
  own?: Record<string, unknown>;
  /** The fields that differ from the `config` entry before, without `own`; absent in the first one. */
  changes?: Array<string>;
  /** The tokens of the system prompt and of the tool schemas. */
  tokens?: ConfigTokens;
}

/** Tokens that every context has beside its messages. */
export interface ConfigTokens {
  /** Tokens of the system prompt. */
  system_prompt: number;
  /** Tokens of the tool schemas. */
  tools: number;
}

/**
 * The argument of the update `configure`. Absent fields stay unchanged; a list replaces the one in force.
 *
 * A change that arrives while a request is active waits until the run ends. A second one is merged with it, and
 * leaves an `input` entry (`merged`). A new policy discards what the session has learned of the models' windows.
 */
export interface ConfigureInput {
  /** The agent. A worker resolves it anew, also if the session is pinned or has the same one. */
  agent?: string | null;
  /** The model. */
  model?: string | null;
  /** The models that a run tries, in this order, while its model has an outage. The next run begins with `model` again. */
  fallbacks?: Array<string> | null;
  /** The system prompt; at most 65 536 bytes. */
  system_prompt?: string | null;
  /** All tools that the model may call from then on. A worker resolves their schemas anew, also if the session is pinned. */
  tools?: Array<string> | null;
  /** Tools that the caller defines, beside `tools`. Their calls wait for `submit_tool_result`. None may have the name of a tool that the session has from its workers. */
  external_tools?: Array<ExternalToolSpec> | null;
  /** The tools that the model's provider runs itself. A provider that has none of a name does not get it. */
  provider_tools?: Array<"web_search" | "web_fetch" | "code_execution" | "image_generation"> | null;
  /** The tools whose calls wait for a person's decision, beside those that always do. */
  require_approval?: Array<string> | null;
  /** Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply until the last decision (`round`). */
  approval_scope?: "call" | "round" | null;
  /** Overlays the session's policy. */
  context_policy?: ContextPolicy | null;
  /** Overlay the options in force; null takes a value away. */
  model_options?: ModelOptions | null;
  /** How the session treats a message while it serves a request. */
  on_busy?: "reject" | "queue" | "interrupt" | "steer" | null;
  /** When inputs enter a run: with its answer (`terminal`) or before its next model call (`step`). */
  steering?: "terminal" | "step" | null;
  /** Overlay the limits in force; null takes a value away. */
  limits?: Limits | null;
  /** Which calls the workers take first while calls wait for them: 1 the first, 5 the last. */
  priority?: number | null;
  /** All names and values of the caller's own. Those of the session's agent stay below them. */
  metadata?: Record<string, string> | null;
  /** The URLs that are told of events of the session. */
  webhooks?: Array<Webhook> | null;
}

/** A change of configuration was accepted. */
export interface ConfigureReceipt {
  /** The `config` entry, if the change was applied. */
  seq?: number;
  /** `applied`, or `deferred` to the end of the run. */
  status: "applied" | "deferred";
}

/**
 * Properties of a projected context. Sizes are in tokens.
 *
 * Only previews have `fits` and the fields after it.
 */
export interface ContextMeta {
  /** Entries of the thread. */
  basis_rev: number;
  /** The last entry of the thread. */
  basis_last_seq: number;
  /** Messages of the context that are not in the thread. */
  pending_count: number;
  /** Whether the window was truncated. */
  truncated: boolean;
  /** Tokens of the context with its tool schemas; of a preview that does not fit, those of its parts up to the one in `overflow`, which is included. */
  estimated_tokens: number;
  /** Whether a summary replaces earlier messages. */
  summary_used: boolean;
  /** Whether a summary is due under the policy. */
  needs_summary: boolean;
  /** Entries that the context has. */
  entries_included: number;
  /** Entries of the thread up to `basis_last_seq`. */
  entries_total: number;
  /** The hash of the policy in force. */
  policy_hash: string;
  /** The seqs at which the window of an epoch was truncated. Of two windows with the same ones, the earlier is a prefix of the later. */
  epoch?: Array<number>;
  /** Tokens at the beginning that are equal, to the byte, to those of the call before. */
  shared_prefix_tokens?: number;
  /** Tool results that a marker replaces. */
  cleared_tool_results?: number;
  /** Images, recordings and files that markers replace. */
  cleared_media?: number;
  /** Tool results that were truncated, by the id of the tool call: the bytes that are left of the beginning and of the end. */
  truncated_tool_results?: Record<string, [number, number]>;
  /** SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`. */
  digest: string;
  /** Whether the context fits; if not, there are no messages. */
  fits?: boolean;
  /** The most tokens of a context under the policy. */
  budget?: number;
  /** The part that does not fit. */
  overflow?: Overflow;
  /** The model that would be called. */
  model?: string;
  /** The longest reply of that call, in tokens. */
  max_output_tokens?: number;
  /** The ratio of the provider's tokens to those counted here, if it is larger than 1. */
  token_ratio?: number;
  /** The cost of the prompt by list price with nothing cached; absent if the price is unknown. */
  input_cost_usd?: number;
  /** The cost of the prompt and of a reply of `max_output_tokens`. */
  cost_usd_at_most?: number;
}

/**
 * The argument of `submit_context_operation` and `modify_context`.
 *
 * An operation is applied at once if no request is active, and else when the run ends. Of the `replace` and `switch`
 * operations that wait only the newest is applied; the others leave an `input` entry (`superseded`). `pin`, `unpin`
 * and `expand` are applied in their order.
 */
export interface ContextOperation {
  /** The operation's id: each is applied once. */
  op_id: string;
  /** The lane; absent: the one that is active when the session accepts the operation. A `switch` names it. */
  context_ref?: string | null;
  /** The operation. */
  operation: Replace | Switch | Pin | Unpin | Expand;
}

/** One page of a context: the answer to the query `context` and of the workflow `ReadContext`. */
export interface ContextPage {
  /** The messages, the system prompt first. */
  messages: Array<Message>;
  /** The tool schemas; on the first page. */
  tool_spec: Array<ToolSpec>;
  /** Properties of the context. */
  meta: ContextMeta;
  /** The JSON Schema that the answer must follow, if the call has one; on the first page. */
  output_schema?: Record<string, unknown>;
  /** The `page` of the next page, where there is one. */
  next_page?: number;
  /** The `at_seq` of the next page, so that all pages are of one context. */
  at_seq?: number;
}

/**
 * The rules that make a context from a thread. Sizes are in tokens.
 *
 * The policy of one level overlays those below it field by field: only fields that were set have an effect.
 */
export interface ContextPolicy {
  /** The context's budget is this less `reserve_output_tokens`. */
  max_input_tokens?: number;
  /** Tokens left for the reply; without `max_output_tokens`, also the longest reply. */
  reserve_output_tokens?: number;
  /** The most messages of history; 0: no limit. */
  max_messages?: number;
  /** The number of newest turns that have priority over a summary and older turns. */
  keep_last_turns?: number;
  /** `sliding`: the newest messages that fit; `epoch`: the beginning moves only when the budget overflows. */
  window?: "sliding" | "epoch";
  /** The share of the budget, between 0 and 1, that an epoch's window keeps where it is truncated. */
  low_water?: number;
  /** `none`: contexts have no summaries; `use_existing`: they have those that exist; `request_new`: the session also writes summaries when the window was truncated; `compact`: it puts them under the lane. */
  summarization?: "none" | "use_existing" | "request_new" | "compact";
  /** The role of a summary's message. */
  summary_role?: "system" | "user";
  /** The kinds that a context may have. Tool calls and their results appear only together. */
  include_kinds?: Array<"message" | "tool_call" | "tool_result" | "summary">;
  /** Replaces the session's; at most 65 536 bytes. */
  system_prompt?: string | null;
  /** The name of a registered projector. */
  projector?: string;
  /** `exact`: the recorded counts; `heuristic`: bytes / 4 + 10. Epochs need `exact`. */
  token_estimator?: "exact" | "heuristic";
  /** A summary is due after more messages than this since the last one. */
  summarize_threshold?: number | null;
  /** A summary is due after more tokens than this since the last one. */
  max_thread_tokens?: number | null;
  /** The model that writes summaries; absent: the session's. */
  summarization_model?: string | null;
  /** The rule by which a marker replaces older tool results. */
  clear_tool_results?: ClearToolResults | null;
  /** The rule by which markers replace older images, recordings and files. */
  clear_media?: ClearMedia | null;
  /** What becomes of an image, a recording or a file that the model does not take: `marker`: a text that names it stands for it; `refuse`: the call fails before it is sent. */
  unsupported_content?: "marker" | "refuse";
}

/** The argument of the query `context`. */
export interface ContextQuery {
  /** The lane; absent: the active one. */
  context_ref?: string | null;
  /** The context as it was when this was the newest entry; for a further page, the `at_seq` of the page before. */
  at_seq?: number | null;
  /** The context of this model call. Not together with `pending`. */
  call_id?: string | null;
  /** Overlays the policy in force. */
  context_policy?: ContextPolicy | null;
  /** Return a preview: the context of a model call if these messages were sent next, as one request. */
  pending?: Array<PendingMessage> | null;
  /** Where the page begins: the `next_page` of the page before. */
  page?: number;
}

/** A session was deleted. */
export interface DeleteReceipt {
  /** Archive segments that were deleted, without those that forks still need. */
  deleted_segments: number;
  /** Sessions of subagents that were deleted with the session. */
  deleted_subagents: number;
}

/**
 * The argument of the workflow `DeleteSession`.
 *
 * It closes the session and deletes its archive and its event histories, and those of its subagents. Forks stay,
 * with the segments that they share. Afterwards the newest workflow of the id is `DeletedSession`, which answers
 * each query with `not_found`. A new session can be started under the id.
 */
export interface DeleteSessionInput {
  /** The session. */
  session_id: string;
}

/** One page of a thread: the answer to the query `entries` and of the workflow `ReadThread`. */
export interface EntriesPage {
  /** The entries that meet the filters, in ascending order. A page of `ReadThread` may be empty and have a `next_seq`. */
  entries: Array<Entry>;
  /** The `from_seq` of the next page, where there is one. */
  next_seq?: number;
  /** Entries before this seq are in the archive; absent if the page begins later, and from `ReadThread`. */
  archived_before?: number;
  /** There is no such session: the message for people; only from `ReadThread`. */
  not_found?: string;
}

/** The argument of the query `entries`. An entry must meet all filters that are set. */
export interface EntriesQuery {
  /** Begin with this entry. */
  from_seq?: number;
  /** The most entries of the page. */
  limit?: number | null;
  /** The kind of entry. */
  kind?: string | null;
  /** The request. */
  request_id?: string | null;
  /** The run. */
  run_id?: string | null;
  /** The model call. */
  call_id?: string | null;
  /** The tool call. */
  tool_call_id?: string | null;
  /** The model call before. */
  parent_call_id?: string | null;
  /** The number of the model call in its run. */
  iteration?: number | null;
  /** The sender of an input. */
  source?: string | null;
  /** The lane that the payload names. */
  context_ref?: string | null;
}

/** An entry, by its kind. */
export type Entry = ConfigEntry | AiMessageEntry | AiContextOperationEntry | SummaryEntry | ErrorEntry | RunEntry | InputEntry | ApprovalEntry | ForkEntry | SessionEntry;

/** An entry of the kind `error`. */
export interface ErrorEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "error";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: ErrorPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/**
 * An error.
 *
 * `details` may hold `status`, the HTTP status of the provider; `limit`, `actual` and `counted`, the tokens of a
 * context that is too long, by the provider and by the session; `op_id`, the context operation that failed;
 * `refused`, what the call was made without; and `retried`.
 */
export interface ErrorPayload {
  /** The type of the error, a word of the contract's list. */
  type: string;
  /** A description for people. */
  message: string;
  /** More about the error: the attempts, the failed operation, the call that follows, the text so far of a refused reply. */
  details: Record<string, unknown>;
}

/**
 * Undo a lane's latest compaction.
 *
 * It removes the lane's topmost layer: a summary, or the snapshot of a `replace` with the reason `compaction`.
 */
export interface Expand {
  /** The origin of the operation. A `replace` for a `compaction` can be undone by `expand`. */
  reason?: "manual" | "restore" | "compaction" | "system";
  /** JSON for the operation's entry. */
  meta?: Record<string, unknown> | null;
  /** Names the operation. */
  type: "expand";
}

/** A tool that the caller defines. Its calls wait until `submit_tool_result` submits their results. */
export interface ExternalToolSpec {
  /** The name: 1 to 64 letters, digits, `_` and `-`. `read_result`, `view_blob` and names that begin with `mcp__` are taken. */
  name: string;
  /** What the tool does, for the model. */
  description?: string;
  /** The JSON Schema of the arguments, an object. The session validates the arguments of each call. */
  parameters: Record<string, unknown>;
  /** The time that a call waits, in seconds. After that the model reads that it timed out. */
  timeout_seconds?: number;
  /** Whether a person must approve each call; `round`: before any call of its reply begins. */
  requires_approval?: boolean | "round";
}

/** A document or another file. */
export interface FilePart {
  /** Always `file`. */
  type: "file";
  /** The blob. */
  blob: Blob;
}

/**
 * The argument of the workflow `FinishUpload`, which verifies what was uploaded, and stores it as a blob.
 *
 * It can be repeated, and answers the same blob. After `content_mismatch`, `not_encrypted`, `too_large`,
 * `unsupported_content` and `upload_expired` the upload is deleted: start another one. After `unknown_upload`
 * (nothing has been uploaded yet) and `unknown_key` it can be finished later.
 */
export interface FinishUploadInput {
  /** The session that the upload was started for. */
  session_id: string;
  /** The upload. */
  upload_id: string;
}

/** The differences of a request from its context, because the provider refuses the context as it is. */
export interface Fitting {
  /** Tools whose name, description or schema was changed, and how. */
  tools?: Record<string, string>;
  /** Tools that are not in the request, and why. */
  tools_left_out?: Record<string, string>;
  /** Options that were changed or left out, and how; `output_schema` where the prompt describes it. */
  options?: Record<string, string>;
  /** Images, recordings and files that are shown as markers or stand in another message, and why: by the first 12 digits of the digest, or by the address. `others`: the number of further ones. */
  media?: Record<string, string>;
  /** The dialect that the request follows; `docs/reference/providers.md` lists them. */
  dialect: string;
  /** Messages that were joined to another one: system messages, and neighbours of one role. */
  merged?: number;
  /** Messages that stand in the request alone, where the provider wants one. */
  added?: number;
  /** Messages without any text, which are not in the request. */
  dropped?: number;
  /** Messages without the provider's own data, because the provider has refused it. */
  own_data?: number;
  /** Messages for which a marker stands, because the provider has refused what they say. */
  texts?: number;
}

/** New entries and the status after them: the answer to the query `follow`. */
export interface FollowPage {
  /** The entries that meet the filters, in ascending order. A page of `ReadThread` may be empty and have a `next_seq`. */
  entries: Array<Entry>;
  /** The `from_seq` of the next page, where there is one. */
  next_seq?: number;
  /** Entries before this seq are in the archive; absent if the page begins later, and from `ReadThread`. */
  archived_before?: number;
  /** There is no such session: the message for people; only from `ReadThread`. */
  not_found?: string;
  /** The status; on the last page. */
  status?: LiveStatus;
}

/** The argument of the query `follow`. */
export interface FollowQuery {
  /** Begin with this entry; absent: return no entries. */
  from_seq?: number | null;
  /** The caller reads the heartbeats of the session's calls: workers send more of them for a while. */
  heartbeats?: boolean;
}

/** An entry of the kind `fork`. */
export interface ForkEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "fork";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: ForkPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** A fork: the session was forked, or is a fork. */
export interface ForkPayload {
  /** `forked_from`: the session is a fork of the other one; `forked_to`: the other one is a fork of it. */
  event: "forked_from" | "forked_to";
  /** The other session. */
  session_id: string;
  /** The last entry that both have. */
  fork_seq: number;
  /** The metadata of the fork. */
  metadata?: Record<string, string>;
}

/** A session was forked. */
export interface ForkReceipt {
  /** The new session. */
  session_id: string;
  /** The last entry that it shares with its parent. */
  fork_seq: number;
}

/**
 * The argument of the workflow `ForkSession`.
 *
 * The fork is independent. To repeat it gives the same fork.
 */
export interface ForkSessionInput {
  /** The session to fork. */
  session_id: string;
  /** The last entry that the session and the fork share. */
  at_seq: number;
  /** The id of the fork. Absent: one is made. */
  new_session_id?: string | null;
  /** The caller's own names and values; the `fork` entries have them. */
  metadata?: Record<string, string> | null;
}

/** The argument of the signal `forked`, which Clew sends to a session that was forked. */
export interface ForkedInput {
  /** The fork. */
  session_id: string;
  /** The last entry that both have. */
  fork_seq: number;
  /** The metadata of the fork. */
  metadata?: Record<string, string> | null;
}

/** The argument of the workflow `GetBlob`. */
export interface GetBlobInput {
  /** The session. Its forks and their origins share their blobs. */
  session_id: string;
  /** The digest of the blob. */
  digest: string;
  /** Begin with this byte: the `next_offset` of the page before. */
  offset?: number;
}

/**
 * The argument of the update `hibernate`.
 *
 * It is refused with `busy` while a request runs or waits, and while a tool call of an ended run may still return:
 * its result would be lost.
 */
export interface HibernateInput {
  /** For people; the thread has it. */
  reason?: string | null;
}

/** The complete session is in the archive; its workflow completes. */
export interface HibernateReceipt {
  /** The thread's last entry. */
  last_seq: number;
}

/** An image: a blob, or the address of an image that the provider fetches. */
export interface ImagePart {
  /** Always `image`. */
  type: "image";
  /** The blob. */
  blob?: Blob;
  /** The address, for providers that take one. Clew never fetches it, and cannot prove what it showed. */
  url?: string;
  /** How closely the model looks, for OpenAI's APIs. Other providers have no such choice. */
  detail?: "auto" | "low" | "high" | "original";
}

/** An entry of the kind `input`. */
export interface InputEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "input";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: InputPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** An input that did not enter the thread as a message. */
export interface InputPayload {
  /** The input was refused, never read, superseded by a later one, or merged with a later one. */
  event: "rejected" | "dropped" | "superseded" | "merged";
  /** The kind of input: `message`, `steer`, `inject`, `modify_context`, `configure`, or a signal's name. */
  kind: string;
  /** The reason for the event. */
  reason: string;
  /** The first 200 characters; of a signal that is malformed, its ids alone. */
  content: string;
  /** The id of the input. */
  input_id?: string;
  /** The id of the context operation. */
  op_id?: string;
  /** The request that it belonged to. */
  request_id?: string;
}

/** An input was accepted. */
export interface InputReceipt {
  /** The input's id: the sender's, or `input-<n>`. */
  input_id: string;
  /** The request whose run reads it. */
  request_id: string;
  /** The position of the input among those that wait, from 1. */
  position: number;
}

/** The argument of the signal `late_result`, by which a tool's worker answers a call whose run has ended. */
export interface LateResultInput {
  /** The call, whose result in the thread is in doubt. */
  tool_call_id: string;
  /** The result, or its parts; of a large text the part that a message has. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** Where the full result is stored, if `content` has a part of it. */
  result?: StoredResult | null;
  /** Whether the result describes a failure. */
  is_error?: boolean;
}

/**
 * Limits of a session's inputs, tool results and usage.
 *
 * `max_total_tokens` and `max_cost_usd` limit the sum of all model calls, those of subagents included; the call that
 * exceeds one is the last.
 */
export interface Limits {
  /** The largest input, in bytes of JSON. */
  max_message_bytes?: number;
  /** The part of a tool result that a message has, in bytes of UTF-8; the archive has the rest. */
  max_tool_result_bytes?: number;
  /** The largest image, recording or file of a message; absent: 50 MiB. */
  max_blob_bytes?: number | null;
  /** The most bytes of all those of one message, each counted once; absent: 100 MiB. */
  max_message_blob_bytes?: number | null;
  /** The most bytes of all those that the session's messages name; a blob counts once for each message. */
  max_session_blob_bytes?: number | null;
  /** The most tokens of prompts and replies. */
  max_total_tokens?: number | null;
  /** The highest cost by list price, in USD. Models whose price the worker does not know are then not called: `CLEW_PRICES` gives prices. */
  max_cost_usd?: number | null;
}

/** The argument of the workflow `ListAgents`, which lists the agents of a worker. */
export interface ListAgentsInput {
}

/** The argument of the workflow `ListSessions`, which lists the sessions that have an archive. */
export interface ListSessionsInput {
  /** Sessions whose metadata `user` is this. */
  user?: string | null;
  /** Sessions in this status. */
  status?: "idle" | "working" | "awaiting_approval" | "awaiting_external" | "failed" | "hibernated" | "closed" | "interrupted" | null;
  /** Sessions with this agent. */
  agent?: string | null;
  /** Sessions that were active since then: ISO 8601 in UTC with milliseconds, `2026-11-01T00:00:00.000Z`. */
  since?: string | null;
  /** Sessions whose ids begin with this. */
  prefix?: string | null;
  /** Begin after the session of this id: the `next_after` of the page before. */
  after?: string | null;
}

/** The part of a session's status that viewers follow. */
export interface LiveStatus {
  /** Entries that the thread has. */
  rev: number;
  /** As in `SessionStatus`. */
  status: string;
  /** The request that the session serves, or serves next. */
  request_id?: string;
  /** The run in progress. */
  run_id?: string;
  /** The model call that the session waits for. */
  call_id?: string;
  /** Model calls that the run in progress has begun. */
  iteration: number;
  /** The requests that have no outcome yet: those of the run, and those that wait. */
  unfinished_request_ids: Array<string>;
  /** The tool calls that run. */
  running_calls: Array<PendingCall>;
  /** The tool calls that wait for a person's decision. */
  pending_approvals: Array<PendingCall>;
  /** The external tool calls that wait for their results. */
  pending_external_calls: Array<PendingExternalCall>;
}

/** One message of a context. */
export interface Message {
  /** The speaker. */
  role: "system" | "user" | "assistant" | "tool";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The tool calls of an assistant message. */
  tool_calls?: Array<ToolCall>;
  /** The call that a tool message answers. */
  tool_call_id?: string;
  /** The tool of a tool message. */
  name?: string;
  /** Blocks that go back to the provider with the message. */
  provider_data?: ProviderData;
}

/**
 * The argument of the update `message`.
 *
 * While a request is active, `on_busy` decides. `reject`: the message is refused with `busy`. `queue`: it waits for
 * its turn. `interrupt`: the active run is cancelled, and the message is next. `steer`: the message joins the active
 * run under its own id, and both requests get the outcome; settings for the run are refused with `invalid_input`.
 *
 * When more than 6 callers of a session wait, the one that has waited for 60 seconds or longer, or else the newest,
 * gets the outcome `running`, and asks again with `await_request`. The same happens when the session rolls over.
 *
 * An `output_schema` has at most 131 072 bytes, 64 levels, 3 000 subschemas and 1 000 that apply to one value with
 * every `$ref` followed. `$anchor`, `$dynamicRef`, `unevaluatedProperties` and similar keywords are refused. The
 * answer's text is JSON that meets it. An answer that does not meet it is followed by a message from `repair`, three
 * times at most; then the request fails with `invalid_output`. The operation `corrected` takes corrections out of
 * later contexts.
 *
 * Before the first call of a `model` that is new to the session, the session asks a worker about it, once for each
 * of the newest 16 models. A policy that does not fit the model fails the request, or has the message refused where
 * the session knows the model.
 */
export interface MessageInput {
  /** The text of the user, or parts. Leading and trailing white space is removed. Blobs that parts name are stored before. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The request's id: each is served once. Absent: the id of the Update, which has the same bounds. Ids that begin with `followup:` are reserved. */
  request_id?: string | null;
  /** How the session treats the message while it serves a request; absent: the session's setting. */
  on_busy?: "reject" | "queue" | "interrupt" | "steer" | null;
  /** Overlays the session's policy for this request, or the one that comes with `model`. */
  context_policy?: ContextPolicy | null;
  /** The model of this request. The policy that the worker chooses for the model comes with it, unless the session was started with a policy. */
  model?: string | null;
  /** The models that this request tries while its model has an outage, instead of the session's; `[]`: none. */
  fallbacks?: Array<string> | null;
  /** Overlay the session's options for this request. */
  model_options?: ModelOptions | null;
  /** Whether `max_output_tokens` may make replies shorter than the session's, and not longer. `clew serve` sets it for keys with `agents`. */
  shortens_only?: boolean | null;
  /** The most model calls of the run. */
  max_iterations?: number | null;
  /** The request fails with `timeout` after this many seconds. */
  timeout_seconds?: number | null;
  /** The JSON Schema that the answer must follow (draft 2020-12, within bounds). */
  output_schema?: Record<string, unknown> | null;
  /** The tools of this request: some of the session's, by the names that models read; `[]`: none. `read_result` and `view_blob` stay beside others. */
  tools?: Array<string> | null;
  /** The caller's tools of this request, instead of the session's `external_tools`; `[]`: none. */
  external_tools?: Array<ExternalToolSpec> | null;
  /** What was answered to the content elsewhere, in order: replies of an assistant, with the results of their tool calls right after them. The run goes on behind them. */
  replies?: Array<SnapshotMessage> | null;
  /** The caller's own names and values; the message's entry has them. */
  metadata?: Record<string, string> | null;
  /** The caller's own refs, such as the message's id in another system. The entry and transcripts have them; no model reads them. */
  refs?: Record<string, string> | null;
}

/** Parameters of model calls. An absent one has the provider's default. */
export interface ModelOptions {
  /** The randomness of sampling. */
  temperature?: number | null;
  /** The part of the probability from which tokens are sampled. */
  top_p?: number | null;
  /** The longest reply, in tokens. Absent: the policy's `reserve_output_tokens`, or 4 096 if that is 0. */
  max_output_tokens?: number | null;
  /** `auto`, `none`, `required`, or the name of a tool. */
  tool_choice?: string | null;
  /** `false`: one tool call a reply. Of a reply with more the first one is carried out, and the model reads that the others were not. */
  parallel_tool_calls?: boolean | null;
  /** The amount of reasoning before the reply; a provider gets the nearest level that it has. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
  /** The length of replies, for models that take it. */
  verbosity?: "low" | "medium" | "high" | null;
  /** The provider's name of a tier of its service, such as `flex` or `priority`. */
  service_tier?: string | null;
  /** Texts that end the reply; it does not contain them. */
  stop?: Array<string> | null;
  /** The seed of sampling, for providers that support it. */
  seed?: number | null;
  /** Fields of the request's body, by the provider that gets them: an object for each, merged into what Clew sends. At most 4 096 bytes of JSON. A call fails if one is a field that Clew writes. Those of a message replace all of the session's. */
  provider_options?: Record<string, Record<string, unknown>> | null;
}

/** The argument of the signal `move`, which wakes a session after a deployment of workers with a version. */
export interface MoveInput {
}

/** A subagent that a session has started and that has not reported its result. */
export interface OpenSubagent {
  /** The tool call that started it. */
  tool_call_id: string;
  /** Its agent. */
  agent: string;
  /** Its session. */
  session_id: string;
  /** `starting`, `working`, or `cancelled`: its call has ended without it. */
  status: "starting" | "working" | "cancelled";
}

/** A context operation was applied. */
export interface OperationPayload {
  /** The id of the operation. */
  op_id: string;
  /** The lane. */
  context_ref: string;
  /** The operation. */
  operation: AppliedReplace | AppliedSwitch | AppliedPin | AppliedUnpin | AppliedExpand | AppliedWithdraw | AppliedCorrected;
}

/** A context operation was accepted. */
export interface OperationReceipt {
  /** The operation's id. */
  op_id: string;
  /** `applied`, `deferred` to the end of the run, or `duplicate`: the id is known, nothing changed. */
  status: "applied" | "deferred" | "duplicate";
  /** The operation's entry, if it was applied. */
  seq?: number;
}

/** The error of a failed request. */
export interface OutcomeError {
  /** The type of the error, a word of the contract's list. */
  type: string;
  /** A description for people. */
  message: string;
  /** Whether the same message may succeed another time. */
  retryable: boolean;
}

/** The part of a context that does not fit. */
export interface Overflow {
  /** `system_prompt`, `tools`, `pending`, `request` or `tool_results`. */
  part: string;
  /** The tokens that the part needs. */
  needed: number;
  /** The tokens that are left for the part. */
  available: number;
}

/** The session that has started this one as its subagent. */
export interface ParentSession {
  /** The session. */
  session_id: string;
  /** Its tool call. */
  tool_call_id: string;
  /** The number of sessions above this one. */
  depth: number;
}

/** A tool call that runs, or that waits for a person's decision. */
export interface PendingCall {
  /** The call. */
  tool_call_id: string;
  /** The tool. */
  name: string;
  /** The model's arguments. */
  arguments: Record<string, unknown>;
}

/** An external tool call that waits for its result. */
export interface PendingExternalCall {
  /** The call. */
  tool_call_id: string;
  /** The tool. */
  name: string;
  /** The model's arguments. */
  arguments: Record<string, unknown>;
  /** When the call times out: ISO 8601 in UTC with milliseconds. */
  expires_at: string;
}

/** A user message that a caller may send next. */
export interface PendingMessage {
  /** Always `user`. */
  role: "user";
  /** The text, or parts; leading and trailing white space is removed. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
}

/** A context operation that waits for the run to end. */
export interface PendingOperation {
  /** The operation's id. */
  op_id: string;
  /** The operation's name: `replace`, `switch`, `pin`, `unpin` or `expand`. */
  type: string;
  /** The origin of the operation. */
  reason: string;
  /** The lane; absent: the active lane. */
  context_ref?: string;
}

/**
 * Keep messages of a lane verbatim in all its contexts.
 *
 * At most 64 messages of a lane are pinned, with at most half of the budget; more are refused with
 * `invalid_operation`.
 */
export interface Pin {
  /** The origin of the operation. A `replace` for a `compaction` can be undone by `expand`. */
  reason?: "manual" | "restore" | "compaction" | "system";
  /** JSON for the operation's entry. */
  meta?: Record<string, unknown> | null;
  /** Names the operation. */
  type: "pin";
  /** The seqs of the messages. */
  seqs: Array<number>;
}

/** List prices in USD: of tokens per million, of searches per thousand. */
export interface Price {
  /** The price of input tokens that are neither read from the provider's cache nor written to it. */
  input: number;
  /** The price of output tokens. */
  output: number;
  /** The price of input tokens read from the cache. None: as `input`. */
  cached_input?: number | null;
  /** The price of input tokens written to the cache. None: as `input`. */
  written_input?: number | null;
  /** The price of those that the cache keeps for an hour. None: as `written_input`. */
  long_written_input?: number | null;
  /** The price of web searches that the provider runs itself. None: it is not known. */
  searches?: number | null;
  /** The prices hold for calls with more input tokens than this. */
  above?: number;
}

/** A call of a tool that the provider ran itself. */
export interface ProviderCall {
  /** The tool: `web_search`, `web_fetch`, `code_execution`, `image_generation`, or the provider's own name of another one. */
  tool: string;
  /** What it was called with: the query, the address or the code; at most 4 000 characters. */
  input?: string;
  /** What it returned, if that is a text: the output of code; at most 4 000 characters. */
  output?: string;
  /** The pages that it has found or read; at most 50. */
  sources?: Array<Source>;
  /** Why it failed. */
  error?: string;
}

/** The part of a reply that goes back to its provider as it came; no other provider gets it. */
export interface ProviderData {
  /** The provider. */
  provider: string;
  /** The content blocks, or the fields of the message, as the provider sent them. */
  blocks: Array<Record<string, unknown>>;
  /** What the provider sent with each tool call of the message, in order: its `id`, and signatures. */
  calls?: Array<Record<string, unknown>>;
  /** The model that sent it, without its provider. Absent: any model of the provider takes it back. */
  model?: string;
}

/**
 * The argument of the workflow `PutBlob`: a chunk of a blob, or all of it.
 *
 * A blob of several chunks is an upload: its chunks have one `upload_id` and are sent in any order, also at the same
 * time, the `last` one when the others have been answered. A chunk may be repeated.
 *
 * The bytes stay in the event history of each `PutBlob` until it is deleted. The workflow with the last chunk
 * deletes the histories of the others; delete its own, and those of `GetBlob`, with `DeleteWorkflowExecution`.
 * `DeleteSession` deletes those with ids of the form `clew-service-putblob-<session id>-` and 32 hexadecimal digits.
 */
export interface PutBlobInput {
  /** The session. It need not exist yet. */
  session_id: string;
  /** The bytes of the chunk in base64, at most 1 000 000 bytes. */
  data: string;
  /** The upload; absent: the blob has one chunk. */
  upload_id?: string | null;
  /** The number of the chunk, from 0. */
  part?: number;
  /** Whether the blob is complete with this chunk. */
  last?: boolean;
  /** The type of the blob. Absent: the type that its first bytes have. Read with the last chunk. */
  media_type?: string | null;
  /** The name of the file. Read with the last chunk. */
  name?: string | null;
  /** The SHA-256 that the blob has. Read with the last chunk. */
  digest?: string | null;
}

/**
 * The argument of the workflow `ReadContext`: that of the query `context`, for any session, archived or not.
 *
 * It answers as the query `context` does, for any session: live, archived, closed or a fork. The `meta` of a preview
 * has its cost.
 */
export interface ReadContextInput {
  /** The lane; absent: the active one. */
  context_ref?: string | null;
  /** The context as it was when this was the newest entry; for a further page, the `at_seq` of the page before. */
  at_seq?: number | null;
  /** The context of this model call. Not together with `pending`. */
  call_id?: string | null;
  /** Overlays the policy in force. */
  context_policy?: ContextPolicy | null;
  /** Return a preview: the context of a model call if these messages were sent next, as one request. */
  pending?: Array<PendingMessage> | null;
  /** Where the page begins: the `next_page` of the page before. */
  page?: number;
  /** The session. */
  session_id: string;
}

/**
 * The argument of the workflow `ReadThread`: the filters of the query `entries`, over archive and live session.
 *
 * A session that does not exist is an empty page with `not_found`.
 */
export interface ReadThreadInput {
  /** Begin with this entry. */
  from_seq?: number;
  /** The most entries of the page. */
  limit?: number | null;
  /** The kind of entry. */
  kind?: string | null;
  /** The request. */
  request_id?: string | null;
  /** The run. */
  run_id?: string | null;
  /** The model call. */
  call_id?: string | null;
  /** The tool call. */
  tool_call_id?: string | null;
  /** The model call before. */
  parent_call_id?: string | null;
  /** The number of the model call in its run. */
  iteration?: number | null;
  /** The sender of an input. */
  source?: string | null;
  /** The lane that the payload names. */
  context_ref?: string | null;
  /** The session. */
  session_id: string;
  /** End with this entry. */
  to_seq?: number | null;
  /** Return at most this many of the newest matching entries, in ascending order. Excludes `limit`. */
  newest?: number | null;
}

/** How the context of a model call was made: enough to make it again from the thread alone. */
export interface Recipe {
  /** The lane that was projected. */
  context_ref: string;
  /** The newest entry that the context could include. */
  basis_seq: number;
  /** The model that was called, as `provider:model`. */
  model: string;
  /** The options of the call (`ModelOptions`) that were set. */
  model_options: Record<string, unknown>;
  /** The hash of the context policy in force. */
  policy_hash: string;
  /** SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`. */
  digest: string;
  /** Tokens of the context under the session's encoding. */
  input_tokens: number;
  /** The usage that the provider reported; an estimate (`estimated_calls`) of an interrupted reply, and where the provider reported none. */
  usage: Usage;
  /** The number of the attempt that returned the reply, from 1 on. */
  attempt: number;
  /** `stop`: the reply is complete; `length`: it reached its limit; `tool_calls`: it calls tools; `paused`: the provider's own tools take long, and the run's next call goes on with it; `interrupted`: the call was cancelled, or failed. */
  stop_reason: "stop" | "length" | "tool_calls" | "paused" | "interrupted";
  /** The seqs at which the window of an epoch was truncated; absent for sliding windows. */
  epoch?: Array<number>;
  /** Tokens that the context shares with the beginning of the lane's call before it; absent for sliding windows. */
  shared_prefix_tokens?: number;
  /** Tool results that a marker replaces; absent where the policy clears none. */
  cleared_tool_results?: number;
  /** Images, recordings and files that markers replace; absent where the policy clears none. */
  cleared_media?: number;
  /** Tool results that were truncated, by the id of the tool call: the bytes that are left of the beginning and of the end. */
  truncated_tool_results?: Record<string, [number, number]>;
  /** The fields that the call's own context policy set; absent: the session's was in force. */
  context_policy?: Record<string, unknown>;
  /** The list prices that the cost was computed from, by rising `above`; absent where the worker knew none. */
  prices?: Array<Price>;
  /** The ratio of the provider's tokens to those counted here, if it is larger than 1. */
  token_ratio?: number;
  /** The names of the call's tools, if its request named some of the session's. */
  tools?: Array<string>;
  /** The seq of the entry whose settings have the `output_schema` that the answer was to follow, or the `external_tools` of the call; absent: the request had neither. */
  settings_seq?: number;
  /** The usage of earlier attempts of the call, whose replies were lost or not usable. */
  earlier_usage?: Usage;
  /** The tools that the provider may run itself. */
  provider_tools?: Array<string>;
  /** The differences of the request from the context; absent: there are none. */
  fitting?: Fitting;
  /** What the provider received; absent: the call had ended before it was sent. */
  request?: SentRequest;
}

/** The ids of what an entry belongs to. Which of them it has depends on its kind. */
export interface Refs {
  /** The session. */
  session_id?: string;
  /** The request. */
  request_id?: string;
  /** The run. */
  run_id?: string;
  /** The model call: the one that returned the reply or called the tool, or the first one that reads the input. */
  call_id?: string;
  /** The number of the model call in its run. */
  iteration?: number;
  /** The model call before it in the run. */
  parent_call_id?: string;
  /** The tool call. */
  tool_call_id?: string;
  /** Where an input came from. */
  source?: string;
  /** The summary. */
  summary_id?: string;
}

/** Items of a context that a provider refuses for one reason, so that requests to its model do not have them. */
export interface Refused {
  /** `media`: a marker stands for an image, a recording or a file; `file_name`: a file has no name; `own_data`: the provider's own data of a message does not go back; `tool`: a tool is not offered; `tool_schema`: its schema names its properties alone; `tool_name`: it has another name; `text`: a marker stands for what a message says. */
  kind: "media" | "file_name" | "own_data" | "tool" | "tool_schema" | "tool_name" | "text";
  /** What names the items: the first 16 digits of a blob's digest, of the SHA-256 of an address, of own data or of a message's content and calls; a tool's name, and behind a colon the first 16 digits of the digest of what was offered. */
  ids: Array<string>;
  /** The provider's words, at most 200 characters. */
  reason: string;
}

/**
 * Put a snapshot under a lane.
 *
 * It creates a lane that does not exist. With the reason `compaction` and no `result_context` the session writes the
 * snapshot: an idle session answers when it is applied, or with the error that prevented it; during a run the answer
 * is `deferred`. The snapshot's tool calls get new ids (`then-…`).
 */
export interface Replace {
  /** The origin of the operation. A `replace` for a `compaction` can be undone by `expand`. */
  reason?: "manual" | "restore" | "compaction" | "system";
  /** JSON for the operation's entry. */
  meta?: Record<string, unknown> | null;
  /** Names the operation. */
  type: "replace";
  /** The snapshot. Absent: the session writes it; only for a `compaction`. */
  result_context?: Snapshot | null;
  /** The lane's messages after this seq stay; absent: none stay. */
  base_seq?: number | null;
}

/** A reply while the model writes it. The committed message may differ. */
export interface ReplyProgress {
  /** The request. */
  request_id: string;
  /** The run. */
  run_id: string;
  /** The model call. */
  call_id: string;
  /** The number of the attempt, from 1 on; a new attempt starts the reply over. */
  attempt: number;
  /** The number of the model call in its run. */
  iteration: number;
  /** Characters of the reply before `text`. */
  offset: number;
  /** The newest 32 768 characters of the reply. */
  text: string;
  /** Characters of the reasoning before `thinking`. */
  thinking_offset: number;
  /** The newest 32 768 characters of the model's reasoning, if the provider sends it. */
  thinking?: string;
  /** The tool whose call the model is writing. */
  tool_name?: string;
}

/**
 * The status of a request. The answer's text is in the thread, so that the history has it once.
 *
 * The query `entries` with `from_seq` as `answer_seq` and a `limit` of 1 reads the answer's text, or the workflow
 * `ReadThread` once the session has ended.
 */
export interface RequestOutcome {
  /** The request. */
  request_id: string;
  /** The run that served it. */
  run_id?: string;
  /** `running`: the request has not ended; wait again with `await_request`. The others are final. */
  status: "completed" | "failed" | "cancelled" | "running";
  /** Why the run ended. */
  termination_reason?: string;
  /** The reason that the caller gave for a cancellation. */
  reason?: string;
  /** The entry with the newest text of the model; a failed request may have one. */
  answer_seq?: number;
  /** The `run` entry; while `running`, the thread's last one. */
  last_seq: number;
  /** Model calls of the run. */
  iterations: number;
  /** The fallback that the run uses, or ended with; absent: its model has had no outage. */
  fallback?: string;
  /** The usage of the run. */
  usage: Usage;
  /** The usage of the subagents that the run has started, and of theirs. */
  subagent_usage?: Usage;
  /** The error of a failed request. */
  error?: OutcomeError;
  /** The images, recordings and files of the request that the model did not get, and why: by the first 12 digits of the digest, or by the address. */
  unread?: Record<string, string>;
}

/**
 * The argument of the workflow `RestoreSession`.
 *
 * A token has at most 524 288 bytes. To repeat it with the same `session_id` gives the same session. It can also
 * fail with any error of `submit_context_operation`.
 */
export interface RestoreInput {
  /** The token that `checkpoint` returned. */
  token: string;
  /** The id of the new session. Absent: one is made. */
  session_id?: string | null;
}

/** A session was made from a checkpoint. */
export interface RestoreReceipt {
  /** The new session. */
  session_id: string;
}

/** A model call that follows one that failed: with a shorter context, of a fallback, or without what was refused. */
export interface Retried {
  /** The new call; the same call, if it was made without what its provider has refused. */
  call_id: string;
  /** The model, as `provider:model`. */
  model: string;
  /** The largest context of the model from now on, in tokens; absent: it is as before. */
  budget?: number;
}

/** An entry of the kind `run`. */
export interface RunEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "run";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: RunPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** The outcome of a request. */
export interface RunPayload {
  /** `finished`. */
  event: "finished";
  /** The status of the request. */
  status: "completed" | "failed" | "cancelled";
  /** Why the request ended: `final_answer`, another word of the contract's list, or the error's type. */
  termination_reason: string;
  /** The usage of the run. Of requests that shared a run, one has the numbers and the others name it. */
  usage: Usage;
  /** The usage of the subagents that the run has started, and of theirs. */
  subagent_usage?: Usage;
  /** Model calls of the run. */
  iterations: number;
  /** The fallback that the run ended with, as `provider:model`; absent: its model had no outage. */
  fallback?: string;
  /** The seq of the answer; absent where there is none. */
  answer_seq?: number;
  /** Why the request failed. */
  error?: OutcomeError;
  /** The reason that the caller gave for a cancellation. */
  reason?: string;
  /** The images, recordings and files of the run's messages that a model did not get, and why: by the first 12 digits of the digest, or by the address. */
  unread?: Record<string, string>;
}

/**
 * Settings of a run from its next model call on, instead of those that its message had.
 *
 * An absent field has the session's value again. They belong to the run: the session keeps its configuration, but
 * for `agent`.
 */
export interface RunSettings {
  /** The agent that goes on with the request. The session has it from then on. */
  agent?: string | null;
  /** The model. */
  model?: string | null;
  /** Overlay the session's options. */
  model_options?: ModelOptions | null;
  /** Whether `max_output_tokens` may make replies shorter than the session's, and not longer. */
  shortens_only?: boolean | null;
  /** Overlays the session's policy, or the one that comes with `model`. */
  context_policy?: ContextPolicy | null;
  /** The JSON Schema that the answer must follow (draft 2020-12, within bounds). */
  output_schema?: Record<string, unknown> | null;
  /** The caller's tools, instead of the session's `external_tools`; `[]`: none. */
  external_tools?: Array<ExternalToolSpec> | null;
  /** The caller's own names and values; the entry of the result or decision has them. */
  metadata?: Record<string, string> | null;
}

/**
 * The argument of the workflow `SendMessage`, which sends a message and waits for its outcome.
 *
 * It opens the session if it does not run. If the message is refused, it fails with the type of the refusal; if the
 * request does not complete, with its error's type or its termination reason, and the outcome as the failure's
 * details. If the workflow is cancelled, so is the request. A workflow id of more than 200 characters is hashed to
 * make the request's id.
 */
export interface SendMessageInput {
  /** The session. One that hibernates, or was closed, is opened again. */
  session_id?: string | null;
  /** Instead of `session_id`: a new session, whose id is this, a hyphen, and the time for which a schedule has started the workflow, as in `daily-20261101T060000Z`. */
  session_prefix?: string | null;
  /** The configuration of a session that does not exist yet; absent: it must exist. */
  config?: SessionConfig | null;
  /** The message. Absent `request_id`: the id of the workflow, so that a repetition has no second effect. */
  message: MessageInput;
  /** Whether the session is closed after the outcome. Absent: a session that `session_prefix` makes is. */
  close?: boolean | null;
}

/** A message was sent, and its request has completed: the answer of the workflow `SendMessage`. */
export interface SendMessageReceipt {
  /** The session. */
  session_id: string;
  /** The request. */
  request_id: string;
  /** The outcome of the request. */
  outcome: RequestOutcome;
}

/** What a provider received: enough to encode it again and compare. */
export interface SentRequest {
  /** SHA-256 of the body as it was sent. */
  digest: string;
  /** The encoder and its version, such as `openai-chat/1`: another one may write other bytes. */
  encoder: string;
  /** The dialect, where the encoder has several. */
  dialect?: string;
  /** What the worker knew the model to take of images, recordings and files, where the context has some. */
  takes?: Array<"image" | "audio" | "pdf" | "text" | "other">;
  /** The items of the context that the request is without, because the provider has refused them. */
  refused?: Array<Refused>;
}

/**
 * The configuration of a session, from its start until a `configure` changes it.
 *
 * With `agent`, absent fields are the agent's. The fields of `context_policy`, `model_options`, `limits` and
 * `metadata` are overlaid one by one; a list replaces the agent's.
 */
export interface SessionConfig {
  /** The agent, by the name under which the workers have it. */
  agent?: string | null;
  /** The model. It is needed if there is no `agent`. */
  model?: string | null;
  /** The models that a run tries, in this order, while its model has an outage. The next run begins with `model` again. */
  fallbacks?: Array<string>;
  /** The system prompt; at most 65 536 bytes. */
  system_prompt?: string | null;
  /** The names of the tools that the model may call, each once. */
  tools?: Array<string>;
  /** Tools that the caller defines, beside `tools`. Their calls wait for `submit_tool_result`. None may have the name of a tool that the session has from its workers. */
  external_tools?: Array<ExternalToolSpec>;
  /** The tools that the model's provider runs itself. A provider that has none of a name does not get it. */
  provider_tools?: Array<"web_search" | "web_fetch" | "code_execution" | "image_generation">;
  /** The tools whose calls wait for a person's decision, beside those that always do. */
  require_approval?: Array<string>;
  /** Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply until the last decision (`round`). */
  approval_scope?: "call" | "round";
  /** The agent's policy. Absent: the worker chooses one for the model. */
  context_policy?: ContextPolicy | null;
  /** The options of model calls. */
  model_options?: ModelOptions;
  /** How the session treats a message while it serves a request. */
  on_busy?: "reject" | "queue" | "interrupt" | "steer";
  /** When inputs enter a run: with its answer (`terminal`) or before its next model call (`step`). */
  steering?: "terminal" | "step";
  /** Limits of the session's inputs, tool results and usage. */
  limits?: Limits;
  /** Which calls the workers take first while calls wait for them: 1 the first, 5 the last. */
  priority?: number;
  /** The caller's own names and values. */
  metadata?: Record<string, string>;
  /** The URLs that are told of events of the session. */
  webhooks?: Array<Webhook>;
  /** Whether the session keeps the version of the agent and the tools' schemas with which it began. Otherwise each request has those of the workers' present deployment. */
  pin?: boolean;
  /** The loop of a run; only `react` is accepted. */
  strategy?: string;
  /** The most model calls of a run. */
  max_iterations?: number;
  /** A request fails with `timeout` after this many seconds. The time in which it only waits for approvals, for results of external calls, or for subagents that wait, does not count. */
  request_timeout_seconds?: number;
  /** The encoding that tokens are counted under: `o200k_base`, `cl100k_base`, `heuristic`, or one that the workers register. Absent: that of the model's family, if the worker knows it. */
  encoding?: string;
  /** The session hibernates after this many seconds without work; at most 10 years. */
  idle_timeout_seconds?: number | null;
}

/** The result of the workflow `AgentSession`. */
export interface SessionEnd {
  /** The thread's last entry. */
  last_seq: number;
}

/** An entry of the kind `session`. */
export interface SessionEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "session";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: SessionPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** The session hibernated, woke, was recovered or was closed. */
export interface SessionPayload {
  /** The event. */
  event: "hibernated" | "woken" | "recovered" | "closed";
  /** The status in which the workflow had ended before a recovery. */
  workflow?: string;
  /** The reason that the caller gave. */
  reason?: string;
}

/**
 * The argument of `AgentSession`.
 *
 * A new workflow first looks for an archive of its id. If there is one, the session continues from it, with the same
 * seqs. An invalid argument fails the workflow at once, with the error's type as the type of its `ApplicationError`;
 * the id may be started again. Cron schedules are refused with `invalid_input`.
 *
 * The start does not ask whether the worker knows the model and the agent: each request asks, and fails with
 * `unknown_model` or `unknown_agent`. It fails with `invalid_token_budget` if the policy leaves no budget.
 */
export interface SessionStart {
  /** The configuration. If this id has an archived session, its configuration is used instead. */
  config: SessionConfig;
  /** The state that the session's own earlier workflow run carried over; not accepted from other callers. */
  carried?: Record<string, number | string> | null;
  /** The task of a subagent; only accepted from the session that starts the subagent. */
  task?: Task | null;
  /** The id of the session's newest workflow run, which has ended: the archive must have what that run has written. Empty: there was none, or the archive is right as it is. Absent: the worker looks for one. */
  after?: string | null;
}

/** The answer to the query `status`. */
export interface SessionStatus {
  /** The session. */
  session_id: string;
  /** `preparing`, `idle`, `checking` (hooks check a message, tool calls or an answer), `awaiting_model`, `stopping` (a run ends as soon as its model call has stopped), `awaiting_tools`, `awaiting_approval`, `awaiting_external`, `summarizing`, `hibernating`, `hibernated` or `closed`. The Python client says `interrupted` of a session whose workflow was terminated or has timed out. */
  status: string;
  /** The lane that the next request is served in. */
  active_context_ref: string;
  /** The request that the session serves, or serves next. */
  request_id?: string;
  /** The run in progress. */
  run_id?: string;
  /** Model calls that the run in progress has begun. */
  iteration: number;
  /** Entries that the thread has; of a session that has ended, those of its end. Forks and a recovery add more to its archive. */
  rev: number;
  /** The last seq that the active lane's context includes; -1: none. */
  projection_cursor_seq: number;
  /** The `replace` or `switch` that waits for the run to end. */
  pending_context_op?: PendingOperation;
  /** All context operations that wait for the run to end, in order. */
  pending_operations: Array<PendingOperation>;
  /** Inputs that the run in progress has not read yet. */
  pending_inputs: number;
  /** Requests that wait for the run to end. */
  queued_messages: number;
  /** The ids of those requests, the next one first. */
  queued_request_ids: Array<string>;
  /** The fields that a waiting `configure` sets. */
  pending_config: Array<string>;
  /** The tool calls that wait for a person's decision. */
  pending_approvals: Array<PendingCall>;
  /** The external tool calls that wait for their results. */
  pending_external_calls: Array<PendingExternalCall>;
  /** The subagents that work for the session. */
  subagents: Array<OpenSubagent>;
  /** The session that has started this one as its subagent. */
  parent?: ParentSession;
  /** The usage of all model calls of the session. */
  usage: Usage;
  /** The usage of the session's subagents, and of theirs. */
  subagent_usage?: Usage;
  /** The agent as a worker has resolved it. */
  agent?: AgentVersion;
  /** The model in force; empty until a worker has resolved the agent whose model it is. */
  model: string;
  /** The configuration in force: every field of `SessionConfig`, the policy complete. */
  config: Record<string, unknown>;
  /** The session's metadata. */
  metadata: Record<string, string>;
  /** Entries before this seq are in the archive. */
  first_live_seq: number;
  /** Whether the session has ended. */
  closed: boolean;
}

/** A session in a list. */
export interface SessionSummary {
  /** The session. */
  session_id: string;
  /** What it was doing when the list's source was last updated. Absent: the source does not know it. */
  status?: "idle" | "working" | "awaiting_approval" | "awaiting_external" | "failed" | "hibernated" | "closed" | "interrupted";
  /** The title: metadata `title`, or the first words of the first message. If metadata `title` is empty, there is none. */
  title?: string;
  /** Its agent. */
  agent?: string;
  /** Its model, as `provider:model`. */
  model?: string;
  /** Metadata `user`. */
  user?: string;
  /** Metadata `tags`, split at commas. */
  tags: Array<string>;
  /** Tokens of prompts and replies, those of its subagents included. */
  tokens?: number;
  /** The cost, in USD, of the calls whose list price is known, those of its subagents included. */
  cost_usd?: number;
  /** When it started: ISO 8601 in UTC. */
  started_at?: string;
  /** When its newest entry was committed by the time of the last update: ISO 8601 in UTC. */
  active_at?: string;
  /** The session that has started it as its subagent, or that it was forked from. */
  parent?: string;
  /** Its metadata. */
  metadata: Record<string, string>;
  /** Whether the list has it from the archive: then its workflow has ended. */
  archived: boolean;
}

/** A page of sessions, in the order of their ids. */
export interface SessionsPage {
  /** The sessions. One that is not `archived` has an archive too, but its workflow has not ended in good order: it runs, or is `interrupted`. */
  sessions: Array<SessionSummary>;
  /** The `after` of the next page; absent on the last page. A page may be empty and have one. */
  next_after?: string;
}

/** A context that `replace` puts under a lane. Its tool results follow right after their calls. */
export interface Snapshot {
  /** The messages, oldest first. */
  messages: Array<SnapshotMessage>;
  /** The lane's system prompt from then on; absent: the session's. */
  system_prompt?: string | null;
}

/** A message of a snapshot or of the replies of a message, in the form of contexts. */
export interface SnapshotMessage {
  /** The speaker; a snapshot has its `system_prompt` beside the messages. */
  role: "user" | "assistant" | "tool";
  /** The text, or parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The tool calls of an assistant message. */
  tool_calls?: Array<SnapshotToolCall> | null;
  /** The call that a tool message answers. */
  tool_call_id?: string | null;
  /** The tool of a tool message. */
  name?: string | null;
  /** Blocks that go back to the provider with the message. */
  provider_data?: SnapshotProviderData | null;
  /** Refs of a caller's own. No model reads them. */
  refs?: Record<string, string> | null;
}

/** The part of a snapshot's message that goes back to its provider as it came. */
export interface SnapshotProviderData {
  /** The provider; no other one gets it. */
  provider: string;
  /** The content blocks, or the fields of the message, as the provider sent them. */
  blocks: Array<Record<string, unknown>>;
  /** What the provider sent with each tool call of the message, in order. */
  calls?: Array<Record<string, unknown>> | null;
  /** The model that sent it; absent: any model of the provider takes it back. */
  model?: string | null;
}

/** A tool call within a snapshot or the replies of a message. */
export interface SnapshotToolCall {
  /** The call's id, unique among them; the call's result names it. */
  id: string;
  /** The tool. */
  name: string;
  /** The arguments of the call. */
  arguments: Record<string, unknown>;
}

/** A page that a provider's tool has read or found. */
export interface Source {
  /** Its address. */
  url: string;
  /** Its title. */
  title?: string;
}

/**
 * The argument of the workflow `StartUpload`, which signs a URL of the store for the bytes of one blob.
 *
 * The second way to store a blob, where the store is a bucket: send the bytes to the `url` of the answer, then start
 * `FinishUpload` with its `upload_id`. The bytes are in no event history. A store without signed URLs refuses with
 * `upload_unavailable`.
 *
 * Treat the URL as a password until it expires. It stays in the history of this workflow: delete that with
 * `DeleteWorkflowExecution`. `DeleteSession` deletes histories with ids of the form
 * `clew-service-startupload-<session id>-` and 32 hexadecimal digits, and `clew-service-finishupload-…`.
 *
 * Where encryption is on, `encrypted` must be true, or the answer is `not_encrypted`. The uploader encrypts the
 * bytes as objects of the archive are encrypted, under the `object_name` of the answer, as Clew's Python client
 * does.
 */
export interface StartUploadInput {
  /** The session. It need not exist yet. */
  session_id: string;
  /** The number of bytes that will be uploaded. */
  bytes: number;
  /** The type that they will have. Absent: the type that their first bytes have. */
  media_type?: string | null;
  /** The name of the file. */
  name?: string | null;
  /** The SHA-256 that they will have. Absent: any. */
  digest?: string | null;
  /** Whether they will be encrypted with the keys of the session's workers, before they are uploaded. Must be true where encryption is on. `bytes` and `digest` are those before encryption. */
  encrypted?: boolean;
  /** The URL is valid for this many seconds. */
  expires_seconds?: number;
}

/** The argument of the signals `steer` and `inject`: a message for the run in progress. */
export interface SteerInput {
  /** The text, or parts; leading and trailing white space is removed. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** When the input enters the run: with its answer (`terminal`) or before its next model call (`step`); absent: the session's `steering`. */
  at?: "terminal" | "step" | null;
  /** The input's id: each is accepted once. Absent: the id of the Update, which has the same bounds; a signal's input is `input-<n>`. Ids of that form are reserved. */
  input_id?: string | null;
  /** Refuse the input unless this request is running. */
  expected_request_id?: string | null;
  /** If the run fails, or reaches its most iterations, before it reads the input: a follow-up run answers the input (`follow_up`), or it is dropped (`drop`). */
  on_failure?: "follow_up" | "drop";
  /** The sender of the input; absent: `steer` or `inject`. */
  source?: string | null;
  /** The caller's own refs. The entry and transcripts have them; no model reads them. */
  refs?: Record<string, string> | null;
}

/** A message of a stored context. */
export interface StoredMessage {
  /** The speaker. */
  role: "system" | "user" | "assistant" | "tool";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The tool calls of an assistant message. */
  tool_calls?: Array<ToolCall>;
  /** The call that a tool message answers. */
  tool_call_id?: string;
  /** The tool of a tool message. */
  name?: string;
  /** Blocks that go back to the provider with the message. */
  provider_data?: ProviderData;
  /** The caller's own refs of the message; no model reads them. */
  refs?: Record<string, string>;
}

/**
 * A large tool result, which the archive has in full under its digest.
 *
 * The archive keeps the first 16 777 216 bytes of a result.
 */
export interface StoredResult {
  /** SHA-256 of the full text. */
  digest: string;
  /** The size of the full text, in bytes of UTF-8. */
  bytes: number;
  /** The size of the part in `content`, in bytes of UTF-8. */
  shown: number;
}

/** A context that was put under a lane. */
export interface StoredSnapshot {
  /** The messages, with ids of tool calls that are unique in the thread. */
  messages: Array<StoredMessage>;
  /** The lane's system prompt; absent: the session's is in force. */
  system_prompt?: string;
  /** Tokens of each message. */
  tokens?: Array<number>;
  /** Tokens of the system prompt. */
  system_prompt_tokens?: number;
  /** Tokens of the images, recordings and files of each message; absent where no message has any. */
  media_tokens?: Array<Array<number>>;
}

/** The session that has worked on a tool call as a subagent. */
export interface Subagent {
  /** The session. */
  session_id: string;
  /** Its agent. */
  agent: string;
  /** Its usage, that of its own subagents included; absent if it had not reported. */
  usage?: Usage;
}

/** The argument of the signal `subagent_result`, which a subagent sends to the session that has started it. */
export interface SubagentResultInput {
  /** The tool call that started the subagent. */
  tool_call_id: string;
  /** The subagent's session. */
  session_id: string;
  /** The status of its request. */
  status: "completed" | "failed" | "cancelled";
  /** Why the request ended. */
  reason: string;
  /** The text of the answer, or the description of the error. */
  content: string;
  /** The usage of the subagent, its own subagents included. */
  usage: Usage;
  /** The seconds that the request has taken, without those in which its clock stood still. */
  worked_seconds: number;
}

/** The argument of the update `submit_input`. */
export interface SubmitInput {
  /** The text, or parts; leading and trailing white space is removed. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** When the input enters the run: with its answer (`terminal`) or before its next model call (`step`); absent: the session's `steering`. */
  at?: "terminal" | "step" | null;
  /** The input's id: each is accepted once. Absent: the id of the Update, which has the same bounds; a signal's input is `input-<n>`. Ids of that form are reserved. */
  input_id?: string | null;
  /** Refuse the input unless this request is running. */
  expected_request_id?: string | null;
  /** If the run fails, or reaches its most iterations, before it reads the input: a follow-up run answers the input (`follow_up`), or it is dropped (`drop`). */
  on_failure?: "follow_up" | "drop";
  /** The sender of the input; absent: `steer` or `inject`. */
  source?: string | null;
  /** The caller's own refs. The entry and transcripts have them; no model reads them. */
  refs?: Record<string, string> | null;
  /** `steer`: the input is from the user; `inject`: it is from a program. */
  kind: "steer" | "inject";
}

/**
 * The argument of the update `summarize`.
 *
 * A summary covers everything up to its `to_seq`: it builds on the summary before.
 *
 * It may also be refused with an error type of the call that writes the summary, with `cancelled` if a message
 * interrupted it, and with `busy` while the session rolls over. An empty range, or one before the summary in force,
 * is `invalid_input`.
 *
 * A summary ends before a round of tool calls of which one may still return after the end of its run. If nothing
 * comes before that round, the refusal is `nothing_to_summarize`.
 */
export interface SummarizeInput {
  /** The lane; absent: the active one. */
  context_ref?: string | null;
  /** Begin at this entry, also if the summary in force already covers it. */
  from_seq?: number | null;
  /** End at this entry, or at the last result of the tool calls that it belongs to. Absent: before the last turns that the policy keeps. */
  to_seq?: number | null;
}

/** An entry of the kind `summary`. */
export interface SummaryEntry {
  /** The entry's number in the thread, from 0 on. */
  seq: number;
  /** Unique in the thread. */
  id: string;
  /** The kind of entry, which determines the type of the payload. */
  kind: "summary";
  /** When it was committed: ISO 8601 in UTC with milliseconds. */
  at: string;
  /** What it holds, by its kind. */
  payload: SummaryPayload;
  /** The ids of the session, request, run and calls that the entry belongs to. */
  refs: Refs;
  /** Tokens of the entry in a context, counted once under the session's encoding. */
  tokens: number;
}

/** A summary of a lane up to a seq. */
export interface SummaryPayload {
  /** The lane. */
  context_ref: string;
  /** The summary's text. */
  content: string;
  /** The format of the text: `text`. */
  format: string;
  /** The first entry that the model read; the summary before covers earlier ones. */
  from_seq: number;
  /** The last entry that the summary covers; it covers everything before, too. */
  to_seq: number;
  /** The model that wrote it, as `provider:model`. */
  model: string;
  /** SHA-256 over the seqs and ids of the entries that the model read. */
  source_digest?: string;
  /** The tokens of those entries. */
  source_tokens?: number;
  /** The seqs of the entries that were pinned then; contexts still have them verbatim. */
  pinned?: Array<number>;
  /** The usage of the model calls that wrote the summary. */
  usage?: Usage;
  /** The requests that were sent for it. */
  recipe?: SummaryRecipe;
}

/** A summary was committed. */
export interface SummaryReceipt {
  /** The entry. */
  seq: number;
  /** The first entry that the model read; the summary before covers earlier ones. */
  from_seq: number;
  /** The last entry that the summary covers. */
  to_seq: number;
  /** Tokens of the summary. */
  tokens: number;
}

/**
 * How a summary was written: with the entry's range, enough to make the requests for it again from the thread.
 *
 * A conversation that is too long for one call is summarized in pieces. Each call then reads what the call before it
 * has written, and the next piece. The text of the last call is the summary.
 */
export interface SummaryRecipe {
  /** The instructions and the form of the conversation in the prompt, as a name with a version. */
  instructions: string;
  /** The most tokens that a call may write. */
  max_output_tokens: number;
  /** What the provider received in the last call. */
  request: SentRequest;
  /** The seq of the summary or the snapshot that the first call has read; absent: there was none. */
  builds_on?: number;
  /** Pairs of seqs between which messages were withdrawn or corrected, which no call has read. */
  withdrawn?: Array<[number, number]>;
  /** The number of calls. */
  calls?: number;
  /** The SHA-256 of the object in the archive that has, for each call before the last, what it has written, where its piece ends, and what the provider received; absent where there is none, or the store has failed. */
  earlier_calls?: string;
}

/**
 * Make the lane that the operation names the active one.
 *
 * It creates a lane that does not exist.
 */
export interface Switch {
  /** The origin of the operation. A `replace` for a `compaction` can be undone by `expand`. */
  reason?: "manual" | "restore" | "compaction" | "system";
  /** JSON for the operation's entry. */
  meta?: Record<string, unknown> | null;
  /** Names the operation. */
  type: "switch";
}

/** The task of a subagent's session. Only the session that starts a subagent sets it. */
export interface Task {
  /** The text of the task: the subagent's first message. */
  content: string;
  /** The request that serves the task. */
  request_id: string;
  /** The session that has started the subagent. */
  session_id: string;
  /** The tool call that the subagent answers. */
  tool_call_id: string;
  /** The number of sessions above the subagent. */
  depth: number;
  /** The most seconds of the request: those that its parent has left. */
  timeout_seconds: number;
  /** The most bytes of the text that the subagent answers. */
  max_result_bytes: number;
  /** The most tokens of the subagent and its own subagents. */
  max_total_tokens?: number | null;
  /** The highest cost of the subagent and its own subagents, in USD. */
  max_cost_usd?: number | null;
}

/** A text. */
export interface TextPart {
  /** Always `text`. */
  type: "text";
  /** The text. */
  text: string;
}

/** A tool call by a model. */
export interface ToolCall {
  /** Made by Clew: unique in its thread, at most 40 letters, digits, `_` or `-`. */
  id: string;
  /** The tool. */
  name: string;
  /** The arguments, always an object: an empty one if the model sent something else, which the tool's result then quotes. */
  arguments: Record<string, unknown>;
}

/**
 * The result of a tool call.
 *
 * Results are committed in the order in which they arrive; contexts show them in the order of the calls. A result
 * that arrives after the end of its run is marked `late`, and contexts show it from then on instead of the one in
 * doubt. If the session has rolled over meanwhile, Clew's worker sends it by the signal `late_result`; that of a
 * remote tool is lost, and its call stays in doubt.
 */
export interface ToolMessage {
  /** The lane. */
  context_ref: string;
  /** The speaker. */
  role: "tool";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The request that the message belongs to. */
  request_id?: string;
  /** The run that the message belongs to. */
  run_id?: string;
  /** Tokens of each image, recording and file of `content`; absent where it has none. */
  media_tokens?: Array<number>;
  /** The call that it answers. */
  tool_call_id: string;
  /** The tool. */
  name?: string;
  /** The arguments with which a person replaced the model's. */
  edited_arguments?: Record<string, unknown>;
  /** The full result, if `content` has a part of it. */
  result?: StoredResult;
  /** Whether the result describes a failure. */
  is_error?: boolean;
  /** Whether it is unknown if the tool has run. */
  in_doubt?: boolean;
  /** The subagent that was called. */
  subagent?: Subagent;
  /** The person or program that submitted the result of an external call, as the caller said. */
  by?: string;
  /** Whether the result arrived after the end of its run; it replaces the result in doubt. */
  late?: boolean;
  /** What was wrong with the operator's setup. Neither models nor tenants read it. */
  problem?: string;
  /** The settings of the run from here on (`RunSettings`); absent: it went on with those that it had. */
  settings?: Record<string, unknown>;
  /** Tokens of the note about the changed arguments. */
  note_tokens?: number;
  /** Tokens of each piece of the text, if it is long enough to be truncated, or has other parts. */
  pieces?: Array<number>;
}

/** A call of a function that runs, with the progress that it has reported. */
export interface ToolProgress {
  /** The request. */
  request_id: string;
  /** The run. */
  run_id: string;
  /** The model call that called the tool. */
  call_id: string;
  /** The number of the model call in its run. */
  iteration: number;
  /** The tool call. */
  tool_call_id: string;
  /** The tool. */
  name: string;
  /** The newest report; null: there is none yet. */
  text?: string;
  /** The part of the work that is done, from 0 to 1, if the tool has reported it. */
  fraction?: number;
}

/**
 * The argument of the update `submit_tool_result`.
 *
 * A call waits from the moment when its round of calls begins, or from its approval, until its result comes or its
 * tool's time is over. While only such calls are open, `status` is `awaiting_external` and the request's time stands
 * still. A result counts once: a repetition is refused with `already_answered`, a result after the end of the call
 * with `call_ended`. The ids of the newest 128 answered calls are remembered.
 */
export interface ToolResultInput {
  /** The external call that waits. */
  tool_call_id: string;
  /** The result: a text; a list of parts, at least one of which is an image, a recording or a file; or any other JSON value, whose JSON text the model reads. The texts have at most `max_tool_result_bytes`. The session has the blobs of parts already: `PutBlob` stores them. */
  content: unknown;
  /** Whether the result describes a failure. */
  is_error?: boolean;
  /** The person or program that answers, as the caller says: a name or an id. The entry has it, and no model reads it. */
  by?: string | null;
  /** Settings of the run from its next model call on; absent: it goes on with those that it has. */
  settings?: RunSettings | null;
}

/** The result of an external tool call was accepted. */
export interface ToolResultReceipt {
  /** The call. */
  tool_call_id: string;
  /** The result's entry. */
  seq: number;
}

/** A tool as a model knows it. */
export interface ToolSpec {
  /** The tool. */
  name: string;
  /** The purpose of the tool. */
  description: string;
  /** The JSON Schema of its arguments. */
  parameters: Record<string, unknown>;
}

/** A message with its seq. */
export interface TranscriptMessage {
  /** The speaker. */
  role: "system" | "user" | "assistant" | "tool";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The tool calls of an assistant message. */
  tool_calls?: Array<ToolCall>;
  /** The call that a tool message answers. */
  tool_call_id?: string;
  /** The tool of a tool message. */
  name?: string;
  /** Blocks that go back to the provider with the message. */
  provider_data?: ProviderData;
  /** The entry. */
  seq: number;
  /** The caller's own refs of the message. */
  refs?: Record<string, string>;
  /** The calls of tools that the provider ran itself for a reply. */
  provider_calls?: Array<ProviderCall>;
  /** The sources that a reply names. */
  citations?: Array<Citation>;
}

/** One page of a lane's messages: the answer to the query `transcript`. */
export interface TranscriptPage {
  /** The messages as they were committed, oldest first. */
  messages: Array<TranscriptMessage>;
  /** The `from_seq` of the next page, where there is one. */
  next_seq?: number;
  /** Messages before this seq are in the archive; absent if the page begins later. */
  archived_before?: number;
}

/** The argument of the query `transcript`. */
export interface TranscriptQuery {
  /** The lane; absent: the active one. */
  context_ref?: string | null;
  /** Begin with this entry. */
  from_seq?: number;
  /** Answer at most this many messages, the newest ones. The system prompt is not counted. */
  limit?: number | null;
  /** Begin with the system prompt. */
  include_system?: boolean;
}

/** Unpin messages of a lane. */
export interface Unpin {
  /** The origin of the operation. A `replace` for a `compaction` can be undone by `expand`. */
  reason?: "manual" | "restore" | "compaction" | "system";
  /** JSON for the operation's entry. */
  meta?: Record<string, unknown> | null;
  /** Names the operation. */
  type: "unpin";
  /** The seqs of the messages. */
  seqs: Array<number>;
}

/** A URL of the store was signed. `FinishUpload` makes a blob of what is uploaded to it. */
export interface UploadReceipt {
  /** The upload. */
  upload_id: string;
  /** The URL. It takes the bytes of this upload, and opens nothing else. It is a secret until it expires. */
  url: string;
  /** The method of the HTTP request whose body has the bytes. */
  method: "PUT";
  /** The headers that the request must have. */
  headers: Record<string, string>;
  /** When the URL expires, and until when the upload can be finished: RFC 3339 in UTC. */
  expires_at: string;
  /** The name under which the bytes are to be encrypted; absent: they are uploaded as they are. */
  object_name?: string;
}

/**
 * Tokens as the providers reported them; what they did not report is estimated.
 *
 * Of the requests that share a run, one has the run's usage: the sum over all requests is the session's.
 */
export interface Usage {
  /** Tokens of prompts, including those read from the provider's cache and written to it. */
  input_tokens: number;
  /** Tokens of replies. */
  output_tokens: number;
  /** Tokens of prompts that were read from the provider's cache. */
  cached_input_tokens: number;
  /** Tokens of prompts that were written to the cache, if the provider charges for that. */
  written_input_tokens?: number;
  /** Those of them that the cache keeps for an hour, which cost more. */
  long_written_input_tokens?: number;
  /** The cost, in USD, of the calls whose list price is known. */
  cost_usd?: number;
  /** Model calls. */
  model_calls: number;
  /** Model calls whose tokens are estimated: their replies were interrupted, or their provider reported none; absent: none. */
  estimated_calls?: number;
  /** The request whose usage has the numbers of the run that both share. */
  shared_with?: string;
}

/** A user's message: it opened a run, or was steered in or injected while one was active. */
export interface UserMessage {
  /** The lane. */
  context_ref: string;
  /** The speaker. */
  role: "user";
  /** The text, or the parts. */
  content: string | Array<TextPart | ImagePart | AudioPart | FilePart>;
  /** The request that the message belongs to. */
  request_id?: string;
  /** The run that the message belongs to. */
  run_id?: string;
  /** Tokens of each image, recording and file of `content`; absent where it has none. */
  media_tokens?: Array<number>;
  /** The id of the input; absent for the message that opened the run. */
  input_id?: string;
  /** The sender of the input, or its kind; absent for the message that opened the run. */
  source?: string;
  /** The metadata of the message. */
  metadata?: Record<string, string>;
  /** The JSON Schema that the answer must follow. */
  output_schema?: Record<string, unknown>;
  /** The other fields of `MessageInput` that the caller set. */
  settings?: Record<string, unknown>;
  /** The caller's own refs; no context shows them. */
  refs?: Record<string, string>;
}

/** A tool call that waits. */
export interface WaitingCall {
  /** The call. */
  tool_call_id: string;
  /** The tool. */
  name: string;
}

/** A URL that is told of events of sessions. */
export interface Webhook {
  /** The URL; `https`. Workers send to no private address, and to no `http`, unless they were told to. */
  url: string;
  /** The name of the secret that signs the messages. The workers have it as `CLEW_WEBHOOK_SECRET_<NAME>`. */
  secret: string;
  /** The types of the events; absent: all. */
  events?: Array<"request.ended" | "approval.wanted" | "external_call.waiting" | "limit.reached"> | null;
}

/** What a webhook tells of an event. It holds no text of a conversation. */
export interface WebhookData {
  /** The session. */
  session_id: string;
  /** The session that has started this one as a subagent. */
  parent_session_id?: string;
  /** The request. */
  request_id: string;
  /** The run that serves it. */
  run_id: string;
  /** The newest entry when the event happened; of `request.ended` the request's `run` entry. */
  seq: number;
  /** How the request has ended. */
  status?: "completed" | "failed" | "cancelled";
  /** Why the run has ended. */
  termination_reason?: string;
  /** The entry with the answer. */
  answer_seq?: number;
  /** Model calls of the run. */
  iterations?: number;
  /** The usage of the run. */
  usage?: Usage;
  /** The usage of the subagents that the run has started. */
  subagent_usage?: Usage;
  /** The error of a failed request. */
  error?: WebhookError;
  /** The calls that wait, at most 50 of them. */
  tool_calls?: Array<WaitingCall>;
  /** The number of the calls that wait. */
  waiting?: number;
}

/** The error of a failed request, without its message, which may quote texts. */
export interface WebhookError {
  /** The type of the error, a word of the contract's list. */
  type: string;
  /** Whether the same message may succeed another time. */
  retryable: boolean;
}

/** The body of a webhook's request. */
export interface WebhookMessage {
  /** What has happened: a request has ended (`request.ended`), tool calls wait for approval (`approval.wanted`) or for results from outside (`external_call.waiting`), a run has ended at a limit of tokens, cost or model calls (`limit.reached`). */
  type: "request.ended" | "approval.wanted" | "external_call.waiting" | "limit.reached";
  /** When it happened, RFC 3339 in UTC. */
  timestamp: string;
  /** The details. */
  data: WebhookData;
}

/** The newest messages of a lane that fit a budget. */
export interface Window {
  /** The messages. */
  messages: Array<Message>;
  /** Properties of the window. */
  meta: ContextMeta;
}

/** The argument of the query `window`. */
export interface WindowQuery {
  /** The most tokens of the window, from 1. */
  token_budget?: number;
  /** The lane; absent: the active one. */
  context_ref?: string | null;
}
