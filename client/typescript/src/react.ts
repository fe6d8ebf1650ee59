/** A session in a React component. */

import { useCallback, useEffect, useReducer, useRef, useState } from "react";

import type { Clew, OpenOptions } from "./client.js";
import type { SessionEvent } from "./events.js";
import type { Content, MessageOptions, ResultContent } from "./session.js";
import { EMPTY_VIEW, fold, settle, type SessionView } from "./view.js";

export type { Call, Ending, Message, SessionView } from "./view.js";

/** How a component begins with a session. */
export interface UseSessionOptions {
  /** The configuration with which the session is opened; absent: it was opened before. */
  open?: OpenOptions;
  /** The most entries that were there before the component, of which messages are shown; the newest ones. */
  newest?: number;
}

/** A session in a component: what it shows, and what a person can do. The functions throw `ClewError`. */
export interface UsedSession extends SessionView {
  /** Why the session is not followed any more; null: it is. */
  error: Error | null;
  /** Send a message. Returns the id of its request. */
  send: (content: Content, options?: MessageOptions) => Promise<string>;
  /** Correct the model while it works. */
  steer: (content: Content) => Promise<void>;
  /** Let a call run that waits for a decision. */
  approve: (callId: string, options?: { arguments?: Record<string, unknown> }) => Promise<void>;
  /** Refuse a call that waits for a decision. */
  deny: (callId: string, reason?: string) => Promise<void>;
  /** Answer a call of an external tool. */
  answer: (callId: string, content: ResultContent, isError?: boolean) => Promise<void>;
  /** Cancel the active request. */
  cancel: () => Promise<void>;
}

type Action = { type: "begin" } | { type: "event"; event: SessionEvent } | { type: "settle"; callId: string };

function reduce(view: SessionView, action: Action): SessionView {
  switch (action.type) {
    case "begin":
      return EMPTY_VIEW;
    case "event":
      return fold(view, action.event);
    case "settle":
      return settle(view, action.callId);
  }
}

/** Follow a session as long as the component is there: a reply grows, and goes on after a lost connection. */
export function useSession(clew: Clew, sessionId: string, options: UseSessionOptions = {}): UsedSession {
  const [view, dispatch] = useReducer(reduce, EMPTY_VIEW);
  const [error, setError] = useState<Error | null>(null);
  const started = useRef(options);
  const shown = useRef(view);
  shown.current = view;

  useEffect(() => {
    const control = new AbortController();
    const { signal } = control;
    const run = async (): Promise<void> => {
      const { open, newest = 500 } = started.current;
      const session = open ? await clew.open(sessionId, open) : clew.session(sessionId);
      const { rev } = await session.status({ signal });
      for await (const event of session.events({ from: Math.max(rev - newest, 0), signal })) {
        dispatch({ type: "event", event });
      }
    };
    dispatch({ type: "begin" });
    setError(null);
    run().catch((reason: unknown) => {
      if (!signal.aborted) {
        setError(reason instanceof Error ? reason : new Error(String(reason)));
      }
    });
    return () => control.abort();
  }, [clew, sessionId]);

  /** The session in which a call waits. */
  const find = useCallback(
    (callId: string) =>
      clew.session(shown.current.waiting.find(call => call.id === callId)?.sessionId ?? sessionId),
    [clew, sessionId],
  );
  return {
    ...view,
    error,
    send: useCallback(
      async (content, messageOptions) => (await clew.session(sessionId).message(content, messageOptions)).id,
      [clew, sessionId],
    ),
    steer: useCallback(
      async content => {
        await clew.session(sessionId).steer(content);
      },
      [clew, sessionId],
    ),
    approve: useCallback(
      async (callId, decision) => {
        await find(callId).approve(callId, decision);
        dispatch({ type: "settle", callId });
      },
      [find],
    ),
    deny: useCallback(
      async (callId, reason) => {
        await find(callId).deny(callId, reason === undefined ? {} : { reason });
        dispatch({ type: "settle", callId });
      },
      [find],
    ),
    answer: useCallback(
      async (callId, content, isError = false) => {
        await find(callId).submitToolResult(callId, content, { is_error: isError });
        dispatch({ type: "settle", callId });
      },
      [find],
    ),
    cancel: useCallback(async () => {
      await clew.session(sessionId).cancel();
    }, [clew, sessionId]),
  };
}
