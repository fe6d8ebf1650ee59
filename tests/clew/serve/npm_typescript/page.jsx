// A page of `useSession`: a reply that grows, decisions, and messages that steer.
import { Clew } from "clew-client";
import { useSession } from "clew-client/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const { id, token, open } = window.chat;
const clew = new Clew({ baseUrl: "", key: token });
window.grown = [];

function Page() {
  const [text, setText] = useState("");
  const session = useSession(clew, id, { open });
  for (const message of session.messages) {
    if (message.isGrowing) window.grown.push(message.text);
  }
  const submit = send => {
    send(text);
    setText("");
  };
  return (
    <main data-status={session.status}>
      {session.messages.map(message => (
        <article key={message.id} className={`${message.role} ${message.isGrowing ? "growing" : "whole"}`}>
          <p>{message.text}</p>
          {message.calls.map(call => (
            <span key={call.id}>{`${call.name} ${call.state}`}</span>
          ))}
        </article>
      ))}
      {session.waiting.map(call => (
        <section key={call.id}>
          {call.name}
          <button onClick={() => session.approve(call.id)}>Approve</button>
          <button onClick={() => session.deny(call.id, "no")}>Deny</button>
        </section>
      ))}
      {session.error && <p role="alert">{session.error.message}</p>}
      <input aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
      <button onClick={() => submit(session.send)}>Send</button>
      <button onClick={() => submit(session.steer)}>Steer</button>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Page />);
