// From what an app gives to `send` to a message in the outbox. State: the outbox.

import type { Client } from "./api.ts";
import { JindouError } from "./errors.ts";
import { checkNames } from "./named.ts";
import { randomName } from "./names.ts";
import type { Settings } from "./options.ts";
import { Outbox, type OutboxParts } from "./outbox.ts";
import { payloadOf } from "./received.ts";

const SEND_OPTIONS = "clientMsgNo redDot expireS noPersist syncOnce tagKey";

export interface Sending extends Pick<Client, "send"> {
  readonly outbox: Outbox;
}

export function createSending(
  { uid, maxQueued, timeouts }: Settings,
  acked: OutboxParts["acked"],
): Sending {
  const { sendMs } = timeouts;
  const outbox = new Outbox({ uid, maxQueued, sendMs, acked });
  return {
    outbox,
    async send(channel, content, options = {}) {
      checkNames("send", options, SEND_OPTIONS);
      const { expireS = 0 } = options;
      if (!Number.isSafeInteger(expireS) || expireS < 0)
        throw new JindouError("bad_request", {
          message: "expireS must be a whole number of seconds, 0 for never",
        });
      return outbox.send({
        channel: { id: channel.id, type: channel.type },
        clientMsgNo: options.clientMsgNo || randomName(),
        header: {
          noPersist: options.noPersist ?? false,
          redDot: options.redDot ?? true,
          syncOnce: options.syncOnce ?? false,
        },
        expireS,
        streamNo: undefined,
        tagKey: options.tagKey,
        payload: payloadOf(content),
      });
    },
  };
}
