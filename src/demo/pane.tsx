// One side of the page: what one user sees, and the switches that disrupt the user's connections.

import { useMemo, useReducer, useState } from "preact/hooks";
import { answer } from "./backend.ts";
import { Device } from "./device.ts";
import { Messages } from "./messages.tsx";
import { Network } from "./network.ts";
import { QUESTION, type Seat } from "./world.ts";

export function Pane(seat: Seat) {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const network = useMemo(() => new Network(), []);
  const start = () => new Device(seat, network, () => redraw(undefined));
  const [devices, setDevices] = useState(() => [start()]);
  const [shown, setShown] = useState(0);
  const device = devices[shown] as Device; // `shown` is a valid index
  const { status, kicked, problem } = device;
  const { name } = seat.user;
  const hasNext = devices.length > shown + 1;
  return (
    <section class="pane" aria-label={name} data-user={name}>
      <header>
        <span class="avatar" aria-hidden="true">
          {name[0]}
        </span>
        <div>
          <h2>{name}</h2>
          <p class="status" data-status={status}>
            {network.isCut ? "no network" : status} · device {shown + 1}
          </p>
        </div>
        <button
          type="button"
          disabled={status !== "online" || hasNext}
          onClick={() => setDevices([...devices, start()])}
        >
          Second device
        </button>
        <button
          type="button"
          role="switch"
          aria-checked={!network.isCut}
          onClick={() => redraw(network.toggle())}
        >
          Network
        </button>
      </header>
      <Threads device={device} />
      {problem !== "" && <Unreachable problem={problem} />}
      <Messages device={device} />
      <Composer device={device} />
      {kicked && (
        <div class="kicked" role="alertdialog" aria-label="Signed out">
          <h3>This device was signed out</h3>
          <p>
            {kicked.message} (code {kicked.code}). The SDK does not connect again.
            {kicked.reason === "auth_failed" && " The demo needs auth.clients = token."}
          </p>
          {hasNext && (
            <button type="button" class="primary" onClick={() => setShown(shown + 1)}>
              Continue with device {shown + 2}
            </button>
          )}
        </div>
      )}
    </section>
  );
}

/** Shows which setting prevents the clients from connecting. */
function Unreachable({ problem }: { readonly problem: string }) {
  const { refusedOrigin = "" } = document.body.dataset;
  return refusedOrigin === "" ? (
    <p role="alert">
      {problem}. The demo uses the address of <code>client.listen</code>, or{" "}
      <code>cluster.clientAddress</code> if it is set.
    </p>
  ) : (
    <p role="alert">
      The broker refuses the clients of this page, because <code>client.allowedOrigins</code> does
      not contain <code>{refusedOrigin}</code>. Add it and restart the broker.
    </p>
  );
}

function Threads({ device }: { readonly device: Device }) {
  const { team, direct, isPeerOnline } = device;
  return (
    <nav aria-label="Conversations">
      {[team, direct].map((thread) => (
        <button
          type="button"
          key={thread.title}
          aria-current={thread === device.thread}
          onClick={() => device.show(thread)}
        >
          {thread.title}
          {thread === direct && (
            <span class="presence" data-online={isPeerOnline}>
              {isPeerOnline ? "online" : "offline"}
            </span>
          )}
          {thread.unread > 0 && <span class="unread">{thread.unread}</span>}
        </button>
      ))}
    </nav>
  );
}

function Composer({ device }: { readonly device: Device }) {
  const { thread, team, network, seat } = device;
  const [text, setText] = useState("");
  const [isAnswering, setAnswering] = useState(false);
  const [problem, setProblem] = useState("");
  const send = (content: string) => {
    setText("");
    return device.send(content);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (text.trim() !== "") void send(text.trim());
  };
  const ask = async () => {
    setAnswering(true);
    await send(text.trim() || QUESTION);
    await answer(seat.world).then(
      () => setProblem(""),
      ({ message }) => setProblem(message),
    );
    setAnswering(false);
  };
  return (
    <form onSubmit={submit}>
      {problem !== "" && <p role="alert">{problem}</p>}
      <input
        aria-label="Message"
        autocomplete="off"
        placeholder={`Write to ${thread.title}`}
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
      />
      {thread === team && (
        <button type="button" onClick={ask} disabled={network.isCut || isAnswering}>
          Ask the AI
        </button>
      )}
      <button type="submit" class="primary">
        Send
      </button>
    </form>
  );
}
