// The parts of a client, put together: who is told when a connection opens, is lost, or is the last one. State: none but its parts'.

import { Background } from "./background.ts";
import { Calls } from "./calls.ts";
import { Connector } from "./connector.ts";
import { createInbound, type Inbound } from "./inbound.ts";
import type { Settings } from "./options.ts";
import { createSending, type Sending } from "./sending.ts";

export interface Parts {
  readonly calls: Calls;
  readonly sending: Sending;
  readonly inbound: Inbound;
  readonly connector: Connector;
}

export function createParts(settings: Settings): Parts {
  const { uid, cursors, maxQueued, timeouts } = settings;
  const calls = new Calls({ maxQueued, requestMs: timeouts.requestMs });
  const background = new Background();
  const sending = createSending(settings, (channel, ack) =>
    inbound.timelines.acked(channel, ack),
  );
  const { outbox } = sending;
  const inbound: Inbound = createInbound({
    uid,
    cursors,
    call: calls.call,
    ask: background.ask,
    isOwn: ({ fromUid, channel, clientMsgNo }) =>
      fromUid === uid && outbox.has(channel, clientMsgNo),
    isSending: (channel) => outbox.isSending(channel),
  });
  const { events, timelines, streams, commands, watching } = inbound;
  const losing = [background, timelines, calls, outbox, streams];
  const connector: Connector = new Connector({
    settings,
    resume: (limit) => timelines.resume(limit),
    opened(link, connack) {
      background.opened(link, connack.limits.maxFramesPerSecond);
      calls.opened(link);
      outbox.opened(link);
      streams.opened();
      watching.opened();
      timelines.opened(connack); // last: it may call handlers
    },
    pushed: inbound.pushed,
    lost() {
      for (const one of losing) one.lost();
    },
    closed(error) {
      background.lost();
      timelines.lost();
      for (const one of [calls, outbox, streams, commands]) one.close(error);
    },
    emit: (event, value) => events.emit(event, value),
  });
  return { calls, sending, inbound, connector };
}
