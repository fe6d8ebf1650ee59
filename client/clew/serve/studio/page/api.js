// The service as this page sees it: requests with the key, and event streams that connect again.

const KEY = "clew-key";
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;
const MOST_TRIES = 4;

export class Refusal extends Error {
  constructor(status, { type = "error", message = "the service has failed", param } = {}) {
    super(message);
    Object.assign(this, { status, type, param });
  }
}

// The key of this tab. `clew dev` gives it in the fragment of the address, which is never sent. Elsewhere a link could
// sign a person in with a stranger's key, to read what the person writes.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given && ["127.0.0.1", "[::1]", "localhost"].includes(location.hostname)) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

export const getKey = () => sessionStorage.getItem(KEY) ?? "";
export const setKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));
export const makeId = () => crypto.randomUUID();
export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function send(method, path, options) {
  return fetch(`/v1/${path}`, {
    method,
    cache: "no-store",
    credentials: "omit",
    ...options,
    headers: { Authorization: `Bearer ${getKey()}`, ...options.headers },
  });
}

async function readRefusal(answer) {
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) dispatchEvent(new CustomEvent("signed-out", { detail: body.error?.message }));
  return new Refusal(answer.status, body.error);
}

// A request that got no answer is sent again. What changes something has an id that makes the repetition harmless.
export async function call(method, path, body, { signal, raw, id = makeId() } = {}) {
  const headers = method === "GET" ? {} : { "Idempotency-Key": id };
  if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
  const options = { signal, headers, body: raw ? body : body === undefined ? undefined : JSON.stringify(body) };
  for (let tries = 1; ; tries++) {
    let answer;
    try {
      answer = await send(method, path, options);
    } catch (error) {
      if (signal?.aborted || tries === MOST_TRIES) throw signal?.aborted ? error : new Refusal(0, { message: "the service cannot be reached" });
      await pause(FIRST_PAUSE * tries);
      continue;
    }
    if (answer.ok) return answer.status === 204 ? null : answer.json();
    const again = Number(answer.headers.get("Retry-After"));
    if ([429, 503].includes(answer.status) && again && again <= 5 && tries < MOST_TRIES) {
      await pause(again * 1000);
      continue;
    }
    throw await readRefusal(answer);
  }
}

export async function readBytes(path, signal) {
  const answer = await send("GET", path, { signal });
  if (!answer.ok) throw await readRefusal(answer);
  return answer.blob();
}

// Follow a stream of server-sent events: yield the data of each, parsed, and connect again until `signal` aborts.
// `connected` is told whether there is a connection.
export async function* follow(path, signal, connected = () => {}) {
  let last = null;
  let wait = FIRST_PAUSE;
  while (!signal.aborted) {
    try {
      const answer = await send("GET", path, { signal, headers: last === null ? {} : { "Last-Event-ID": last } });
      if (!answer.ok) {
        const refusal = await readRefusal(answer);
        if (answer.status < 500 && answer.status !== 429) throw refusal;
      } else {
        connected(true);
        for await (const { id, event, data } of parse(answer.body)) {
          wait = FIRST_PAUSE;
          last = id ?? last;
          if (event === "error") throw new Refusal(500, JSON.parse(data).error);
          yield JSON.parse(data);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal && error.status < 500) throw error;
    }
    connected(false);
    await pause(wait * (0.5 + Math.random()));
    wait = Math.min(wait * 2, LONGEST_PAUSE);
  }
}

async function* parse(body) {
  let rest = "";
  for await (const piece of readText(body)) {
    const frames = (rest + piece).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const event = { data: [] };
      for (const line of frame.split("\n")) {
        const [, name, value] = /^([a-z]*): ?(.*)$/.exec(line) ?? [];
        if (name === "data") event.data.push(value);
        else if (name) event[name] = value;
      }
      if (event.data.length) yield { ...event, data: event.data.join("\n") };
    }
  }
}

async function* readText(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
