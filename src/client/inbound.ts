// Takes what the server pushes to where it belongs, and from there to the app's handlers. State: the handlers; the rest is its parts'.

import type { Push } from "../protocol/protocol.ts";
import { Commands } from "./commands.ts";
import { createEvents, type Events } from "./events.ts";
import { createReceiving, type Receiving } from "./received.ts";
import { Streams, type StreamsParts } from "./streams.ts";
import { Timelines, type TimelinesParts } from "./timelines.ts";
import { Watching } from "./watching.ts";

export type InboundParts = Pick<StreamsParts, "call" | "ask"> &
  Pick<TimelinesParts, "uid" | "cursors" | "isOwn" | "isSending">;

export interface Inbound {
  readonly events: Events;
  readonly timelines: Timelines;
  readonly streams: Streams;
  readonly commands: Commands;
  readonly watching: Watching;
  readonly receiving: Receiving;
  pushed(push: Push): void;
}

export function createInbound(parts: InboundParts): Inbound {
  const { uid } = parts;
  const events = createEvents();
  const trouble: TimelinesParts["trouble"] = (error) =>
    events.emit("error", error);
  const streams = new Streams({
    ...parts,
    appeared: (stream) => events.emit("stream", stream),
    told: (event) => events.emit("event", event),
  });
  const receiving = createReceiving(uid, streams.ofMessage);
  const timelines = new Timelines({
    ...parts,
    trouble,
    deliver: (message) => events.emit("message", receiving.message(message)),
  });
  const commands = new Commands({
    ...parts,
    trouble,
    handlers: () => events.handlers("command"),
  });
  const watching = new Watching({
    ask: parts.ask,
    trouble,
    changed: (presence) => events.emit("presence", presence),
    call: (handler, presence) => events.call(handler, presence),
  });
  const pushed = (push: Push): void => {
    switch (push.kind) {
      case "message":
        return timelines.message(push.channel, push.message);
      case "messages":
        return timelines.run(push);
      case "event":
        return streams.event(push.channel, push.event);
      case "stream":
        return void streams.snapshot(push.channel, push.snapshot);
      case "command":
        return commands.take(push.channel, push.inboxSeq, push.message);
      case "conversation": {
        const { change } = push;
        const conversation = receiving.conversation(push.conversation);
        return events.emit("conversation", { change, conversation });
      }
      case "presence":
        return watching.take(push.presence);
      case "disconnect": // the link's own business
    }
  };
  return { events, timelines, streams, commands, watching, receiving, pushed };
}
