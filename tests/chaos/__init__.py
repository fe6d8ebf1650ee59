"""Chaos: many callers and faults at once, real processes, and an oracle that knows what callers were promised.

`make chaos MINUTES=60 SEED=1` and `python -m tests.chaos` run it: rounds of five minutes with consecutive seeds,
until the first broken promise. A round has a Temporal server on a database file, three workers, `clew serve`, a
bucket behind a proxy (S3 over HTTP), a scripted model and the live channel's Redis behind other proxies, and a
receiver of webhooks. With `SERVER=cluster` it has Temporal on PostgreSQL with several shards, and SeaweedFS behind
the proxy.

Callers of six sessions, and of their forks, imports and restored checkpoints, send every command, also twice with
one id after errors that do not say whether the command was accepted. They read, follow with cursors and reconnect,
over Python and over HTTP. Two schedules send messages meanwhile. Agents have subagents and fallbacks, workers have
hooks. Rounds of even seeds encrypt, and rotate their keys in the middle.

Faults, at times that come from the seed:

- workers: SIGKILL; SIGSTOP for 1 to 14 seconds; wall clocks that jump by up to 40 days. Clocks need Debian's
  `libfaketime`; without it a run fails, unless it has `--without-clocks`. One worker caches no session, one caches
  two.
- service: SIGKILL, SIGSTOP, SIGTERM (it drains), and a restart at its port.
- webhooks: two of five deliveries are refused with 503, some connections are reset.
- server: SIGKILL, and a restart on the same database and port.
- provider: connections reset, stalled or cut; 429 with `Retry-After`; 500; garbage; a malformed stream; a reply of
  24 MB; a redirect to another host.
- live channel: its Redis server is killed, stopped and emptied, and cut off: connections are reset and refused, or
  stay open while nothing passes in one or both directions.
- store: errors, delays, resets; answers that are lost after the write; writes that are acknowledged and lost;
  objects that are older than the newest write, for 5 seconds.

The oracle keeps the answers that each caller got. A command without an answer may have been accepted, once. The
oracle checks, while the round runs and at its end:

- Threads: each accepted message, input and operation is in the thread once; each request has one outcome, the one
  that its callers got; a repeated command got the same answer; seqs have no gap. A signal that was accepted is in
  the thread, unless the session was being closed.
- Readers: each reader saw a prefix of the thread, in order, and all saw the same entries. Each connection showed
  all of a reply, once, before its entry. Another tenant read nothing.
- Tools: they write each effect to a file outside of Clew. A tool that is not `idempotent` took effect once at most,
  others within their retries. None ran without a model's call, or without an approval that it needs.
- Hooks: no model saw a message, no tool a call, and no caller an answer that the hooks refuse.
- Models: each reply is by the model that its recipe names. A run keeps its fallback. Each usage is that of one
  request that the provider has served. An answer to a schema meets it. The image of a message was shown.
- Forks and imports begin with their parent's entries, also after the parent was deleted.
- Webhooks and schedules: a receiver got each outcome, signed, with one id; each time of a schedule is one message.
- Secrets: the provider's key is in no thread, database or log; with encryption no text is either. After a rotation
  the newest key opens every object.
- Deletion: after it no route and no method answers. At the end the store is empty.
- The audit replays every history, and verifies every model call.
- Once the faults are over, every session is idle within five minutes and answers a last message.

The last cases come when everything is at rest: a message that the hooks refuse, one with a schema, an external
call, a subagent, a fallback; an image and a stored result in a session that is exported and imported; a fork that
is deleted while its parent stays; a session that is flooded with signals; a request two of whose three workers die;
a session whose head in the store is lost, and then old.

`--break NAME` breaks a mechanism on purpose, and succeeds if the round notices it: `fallback`, `import`, `rekey`,
`deletion`. A slow test does it with all of them.

What the promises need of the store:

- A write counts when the store has shown it. Clew reads back what it archives before it drops it from the history,
  so a store that loses an acknowledged write costs a retry.
- An object that the store lost after it had shown it can only be detected: reads fail with `archive_damaged`.
- An old object where a newer one was written costs retries. A session that is opened again needs its newest head at
  once; without a head it would begin again. S3, Google Cloud Storage and Azure always show the newest object. So
  the run serves old objects, but not old heads of other executions, and no old ranges of a tool result."""
