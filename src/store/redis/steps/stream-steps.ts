// Operations that change streams: builds their arguments, and the records in which events and the
// stream's message are stored and published. Operations are queued synchronously.
// `library/streams.lua` describes the replies. State: only cached key names.

import { BrokerError } from "../../../broker/errors.ts";
import {
  isNoteType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
} from "../../../broker/model.ts";
import type { StreamDraft } from "../../../broker/ports.ts";
import { encodeExtra, encodeRecord } from "../../../redis/wire.ts";
import { eventMark } from "../../event-ids.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { OperationReply, Operations } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import { checkOf } from "./append-call.ts";
import { ChannelNamesOf } from "./channel-names.ts";
import { eventHead, eventTail } from "./stream-record.ts";

/** Kinds of events by their number in the library. */
const START = 1;
const NOTE = 3;
const END = 4;
const KINDS = new Map<string, number>([
  [STREAM_START, START],
  [STREAM_CONTENT, 2],
  [STREAM_END, END],
]);
const EVENT_BYTES = 13;
const START_BYTES = 16;
const END_BYTES = 9;
const VIEWER = -1;

const NO_TEXT = Buffer.from(streamPayload(""));

type StreamName = Pick<StreamDraft, "key" | "clientMsgNo">;

/** Functions that send operations. `event` may throw `bad_request` or `too_large`. */
interface StreamSteps {
  event(draft: StreamDraft): Promise<OperationReply>;
  end(name: StreamName, silentSinceMs?: number): Promise<OperationReply>;
}

export function createStreamSteps(
  { link, clock, limits }: Pick<RedisStorePorts, "link" | "clock" | "limits">,
  operations: Operations,
): StreamSteps {
  const names = new ChannelNamesOf(link);

  function start(draft: StreamDraft): Promise<OperationReply> {
    const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
    const { bucket, head, ids, users, appendArgs } = names.get(key);
    const nowMs = clock();
    const nobody = { origin: undefined, recipients: undefined };
    const numbers = Buffer.alloc(START_BYTES);
    numbers[0] = users;
    numbers.set(checkOf(draft.permission ?? "granted"), 1);
    numbers[3] = draft.force ? 1 : 0;
    numbers.writeDoubleBE(ids.bucket, 4);
    numbers.writeUInt32BE(snapshotBytes(draft), 12);
    return operations.run(
      { bucket, key: head },
      {
        ...{ name: "stream_start", numbers, order: orderOf(draft) },
        texts: [
          ...[...appendArgs, clientMsgNo, fromUid, eventId, eventMark(draft) ?? ""],
          ...[data, tailOf(draft, nowMs), eventHead(draft), recordOf(draft, nowMs)],
          ...[encodeExtra({ ...nobody, isStream: true }), ids.key],
        ],
      },
    );
  }

  return {
    async event(draft) {
      const kind = kindOf(draft, limits.maxStreamBytes);
      if (kind === START) return start(draft);
      const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
      const { bucket, head, users, appendArgs } = names.get(key);
      const numbers = Buffer.alloc(EVENT_BYTES);
      numbers[0] = kind;
      numbers[1] = users;
      numbers.set(checkOf(draft.permission ?? "granted"), 2);
      numbers[4] = draft.isCancel ? 1 : 0;
      numbers.writeUInt32BE(data.length, 5);
      numbers.writeUInt32BE(snapshotBytes(draft), 9);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_event", numbers, order: orderOf(draft) },
          texts: [
            ...[...appendArgs, clientMsgNo, fromUid, eventId, eventMark(draft) ?? "", data],
            tailOf(draft, clock()),
          ],
        },
      );
    },

    end({ key, clientMsgNo }, silentSinceMs = VIEWER) {
      const { bucket, head, users, appendArgs } = names.get(key);
      const numbers = Buffer.alloc(END_BYTES);
      numbers[0] = users;
      numbers.writeDoubleBE(silentSinceMs, 1);
      return operations.run(
        { bucket, key: head },
        {
          ...{ name: "stream_end", numbers, order: orderOf({ key, clientMsgNo }) },
          texts: [...appendArgs, clientMsgNo],
        },
      );
    },
  };
}

function orderOf({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

function kindOf({ type, data, timestampMs }: StreamDraft, maxStreamBytes: number): number {
  const kind = isNoteType(type) ? NOTE : KINDS.get(type);
  const isTime = timestampMs === undefined || Number.isFinite(timestampMs);
  if (kind === undefined || !isTime) throw new BrokerError("bad_request");
  if (data.length > maxStreamBytes) throw new BrokerError("too_large");
  return kind;
}

function tailOf({ type, data, timestampMs }: StreamDraft, nowMs: number): Buffer {
  return eventTail({ type, data, timestampMs: timestampMs ?? nowMs });
}

function recordOf(draft: StreamDraft, nowMs: number): Buffer {
  const { channel, fromUid, clientMsgNo, payload = NO_TEXT } = draft;
  return encodeRecord(
    {
      ...{ channel, fromUid, clientMsgNo, payload },
      header: { noPersist: false, redDot: true },
      ...{ expireS: 0, streamNo: undefined, tagKey: undefined },
    },
    nowMs,
  );
}
