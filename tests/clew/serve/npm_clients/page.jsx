// A page of `useChat`: messages, approvals, a tool that the page runs itself, and a reply that goes on after a reload
// and after a drain of the service.
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const { id, token, messages } = window.chat;
const external_tools = [
  { name: "show_map", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
];
const transport = new DefaultChatTransport({
  api: "/v1/ui/chat",
  headers: { Authorization: `Bearer ${token}` },
  body: { external_tools },
});

function Page() {
  const [text, setText] = useState("");
  const chat = useChat({
    id,
    messages,
    transport,
    resume: true,
    sendAutomaticallyWhen: options =>
      lastAssistantMessageIsCompleteWithApprovalResponses(options) ||
      lastAssistantMessageIsCompleteWithToolCalls(options),
    onData({ type, data }) {
      if (type === "data-draining") setTimeout(() => chat.resumeStream(), data.retryAfterSeconds * 1000);
    },
    onError() {
      window.failures = (window.failures ?? 0) + 1;
    },
    onToolCall({ toolCall }) {
      if (toolCall.toolName === "show_map") {
        chat.addToolOutput({ tool: "show_map", toolCallId: toolCall.toolCallId, output: { shown: toolCall.input.city } });
      }
    },
  });
  return (
    <main>
      {chat.messages.map(message => (
        <article key={message.id} className={message.role}>
          {message.parts.map((part, number) => {
            if (part.type === "text") return <p key={number}>{part.text}</p>;
            if (!isToolUIPart(part)) return null;
            return (
              <section key={part.toolCallId}>
                {part.type} {part.state}
                {part.state === "approval-requested" && (
                  <>
                    <button onClick={() => chat.addToolApprovalResponse({ id: part.approval.id, approved: true })}>
                      Approve
                    </button>
                    <button onClick={() => chat.addToolApprovalResponse({ id: part.approval.id, approved: false })}>
                      Deny
                    </button>
                  </>
                )}
              </section>
            );
          })}
        </article>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <form
        onSubmit={event => {
          event.preventDefault();
          chat.sendMessage({ text });
          setText("");
        }}
      >
        <input aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
        <button>Send</button>
      </form>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Page />);
