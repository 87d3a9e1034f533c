// The messages of a conversation. Older messages are loaded when the user scrolls up. Streams are
// shown while they are being written.

import type { ReceivedMessage } from "jindou-client";
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef } from "preact/hooks";
import type { Device } from "./device.ts";

/** Distance from the top, in pixels, below which older messages are loaded. */
const NEAR_TOP = 120;
const clock = (ms: number) => new Date(ms).toLocaleTimeString([], { timeStyle: "short" });

export function Messages({ device }: { readonly device: Device }) {
  const { thread, seat, network } = device;
  const { messages, drafts, hasOlder } = thread;
  const list = useRef<HTMLDivElement>(null);
  // the list is laid out from its end, so its scroll position is 0 at the newest message
  useEffect(() => list.current?.scrollTo(0, 0), [thread, drafts.length]);
  const onScroll = () => {
    const { scrollHeight = 0, clientHeight = 0, scrollTop = 0 } = list.current ?? {};
    const isNearTop = scrollHeight - clientHeight + scrollTop < NEAR_TOP;
    if (isNearTop && hasOlder) void device.loadOlder(thread);
  };
  useEffect(onScroll, [messages.length]); // a tall pane has no scroll bar at first
  const { fromMs, toMs } = network.away;
  const missed = messages.filter(
    ({ timestampMs, fromUid }) =>
      timestampMs >= fromMs && timestampMs < toMs && fromUid !== seat.user.uid,
  );
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard reaches a list that scrolls
    <div class="messages" role="log" tabIndex={0} ref={list} onScroll={onScroll}>
      <ol>
        {messages.length + drafts.length === 0 && <li class="notice">No messages yet</li>}
        {messages.map((message) => (
          <li key={message.messageId} data-mine={message.fromUid === seat.user.uid}>
            {message === missed[0] && (
              <p class="missed">
                {missed.length} message{missed.length > 1 && "s"} while you were away
              </p>
            )}
            {message.stream ? (
              <StreamBubble device={device} message={message} />
            ) : (
              <p class="bubble">
                {String(message.content?.content ?? "")}
                <time>{clock(message.timestampMs)}</time>
              </p>
            )}
          </li>
        ))}
        {drafts.map(({ clientMsgNo, text, error }) => (
          <li key={clientMsgNo} data-mine class="draft">
            <p class="bubble">{text}</p>
            <p class="note">{error ?? "not sent yet"}</p>
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Follows a stream and draws it again after each change. */
function StreamBubble({ device, message }: { device: Device; message: ReceivedMessage }) {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const live = useMemo(() => device.client.stream(message), [device, message.messageId]);
  useLayoutEffect(() => live.subscribe(() => redraw(undefined)), [live]);
  const { text, state } = live.snapshot();
  return (
    <>
      <p class="bubble ai" data-state={state}>
        {text}
      </p>
      <p class="note">
        {state === "cancelled" ? "AI · stopped" : "AI"}
        {state === "active" && (
          <button type="button" onClick={() => void device.client.cancel(message)}>
            Stop
          </button>
        )}
      </p>
    </>
  );
}
