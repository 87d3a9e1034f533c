// Creates channel streams and appends to them through the Durable Streams protocol. A stream
// belongs to the sender of its message. Each call checks that the sender may still send.

import type { ChannelActivity } from "./channel-activity.ts";
import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import type { LogAppend, LogAppendResult, LogCreation } from "./log-ports.ts";
import type { Logs } from "./logs.ts";
import { type ChannelRef, channelKey } from "./model.ts";
import { checkOf, type SendTerms } from "./permissions.ts";
import type { ChannelLogStore, StreamCreationDraft } from "./ports.ts";
import { assertStreamName } from "./streams.ts";

/** Identifies a channel's stream and the user who writes to it. */
export interface SentStream {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** True if a backend sends on behalf of the user. */
  readonly isBackend: boolean;
}

/**
 * All methods may throw a `SendRefusal` code, `bad_id`, `bad_request`, `overloaded`, `disk_full` or
 * `unavailable`.
 */
export interface ChannelLogs {
  /**
   * Creates the stream. If the stream already exists, checks that it has this configuration and
   * sender. Throws `client_msg_no_reused` if the clientMsgNo belongs to a message that is not a
   * stream.
   */
  create(
    stream: SentStream,
    draft: Pick<StreamCreationDraft, "contentType" | "records" | "isClosed">,
  ): Promise<LogCreation>;
  /**
   * Appends in the same way as `Logs.append`. Throws `forbidden` if the stream has a different
   * sender, and `too_large` if the stream was started by `POST /event` and would exceed its maximum
   * size.
   */
  append(stream: SentStream, append: LogAppend): Promise<LogAppendResult>;
}

interface ChannelLogPorts extends SendTerms {
  readonly store: ChannelLogStore;
  readonly logs: Pick<Logs, "appendInOrder">;
  readonly activity: Pick<ChannelActivity, "event">;
}

export function createChannelLogs(ports: ChannelLogPorts): ChannelLogs {
  const { store, logs, activity } = ports;

  function senderOf({ channel, fromUid, clientMsgNo, isBackend }: SentStream) {
    assertStreamName(channel, clientMsgNo);
    assertId(fromUid, "from_uid");
    const key = channelKey(channel, fromUid);
    const permission = checkOf(fromUid, channel, ports, isBackend);
    return { key, channel, fromUid, clientMsgNo, permission };
  }

  return {
    async create(stream, draft) {
      const sender = senderOf(stream);
      const creation = await store.createStream({ ...sender, ...draft });
      if (creation.verdict === "refused") throw new BrokerError(creation.refused);
      if (creation.verdict === "taken")
        throw new BrokerError("client_msg_no_reused", {
          message:
            "The client_msg_no belongs to a message that is not a stream; start the stream with a new client_msg_no",
        });
      if (creation.verdict === "created") activity.event(sender.key);
      return creation;
    },

    async append(stream, append) {
      const sender = senderOf(stream);
      const { key, clientMsgNo } = sender;
      const name = { kind: "channel", key, clientMsgNo } as const;
      const result = await logs.appendInOrder(name, append, async () => {
        const outcome = await store.appendToStream({ ...sender, ...append });
        if (outcome.verdict === "refused") throw new BrokerError(outcome.refused);
        if (outcome.verdict === "other_sender")
          throw new BrokerError("forbidden", {
            message: "Only the sender of the stream may append to it",
          });
        return outcome;
      });
      if (result.verdict === "appended") activity.event(key);
      return result;
    },
  };
}
