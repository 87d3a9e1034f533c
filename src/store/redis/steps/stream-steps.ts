// Scripts that change streams: builds their arguments, and the records in which events and the
// stream's message are stored and published. Scripts are sent synchronously. `lua/stream_steps.lua`
// describes the replies. State: only cached key names.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
  TOOL_CALL_EVENTS,
} from "../../../broker/model.ts";
import type { StreamDraft } from "../../../broker/ports.ts";
import { usersOf } from "../../../redis/keys.ts";
import { loadScript } from "../../../redis/script.ts";
import { encodeExtra, encodeRecord } from "../../../redis/wire.ts";
import { eventMark } from "../../event-ids.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { areUsersApart, ChannelNamesOf, dedupeKey } from "./channel-names.ts";
import { eventHead, eventTail } from "./stream-record.ts";

const STEPS = [lua("snapshot"), lua("stream_steps")];
const PLACE = [lua("place"), lua("dedupe"), lua("entry")];
const START = loadScript(lua("stream_start"), ...PLACE, ...STEPS);
const EVENT = loadScript(lua("stream_event"), ...STEPS);
const END = loadScript(lua("stream_end"), ...STEPS);

/** Kind of an event in scripts: start, content, note (a tool call) or end. */
type EventKind = "s" | "c" | "n" | "e";
const KINDS = new Map<string, EventKind>([
  [STREAM_START, "s"],
  [STREAM_CONTENT, "c"],
  [STREAM_END, "e"],
  ...[...TOOL_CALL_EVENTS].map((type) => [type, "n"] as const),
]);

const NO_TEXT = Buffer.from(streamPayload(""));

type StreamName = Pick<StreamDraft, "key" | "clientMsgNo">;

/** Functions that send scripts. `event` may throw `bad_request` or `too_large`. */
interface StreamSteps {
  event(draft: StreamDraft): Promise<unknown>;
  end(name: StreamName, silentSinceMs?: number): Promise<unknown>;
}

export function createStreamSteps({
  link,
  clock,
  limits,
}: Pick<RedisStorePorts, "link" | "clock" | "limits">): StreamSteps {
  const { keys } = link;
  const names = new ChannelNamesOf(link);
  const { maxStreamBytes } = limits;
  const windowMs = limits.dedupeWindowS * 1000;

  const indexesOf = (key: ChannelKey) =>
    areUsersApart(link, key) ? [] : usersOf(key).map((uid) => keys.user("streams", uid));

  function start(draft: StreamDraft): Promise<unknown> {
    const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
    const { ids, topics, peerKeys, peers, ...channelKeys } = names.get(key);
    const nowMs = clock();
    const [firstPeer = "", secondPeer = ""] = peers;
    const nobody = { origin: undefined, recipients: undefined };
    return link.run(
      START,
      [
        ...[channelKeys.head, channelKeys.log, ids.key, channelKeys.due],
        ...[dedupeKey(keys, draft), keys.channel("activeStream", key)],
        ...indexesOf(key),
        ...peerKeys,
      ],
      [
        ...[key, clientMsgNo, nowMs, windowMs, eventId, data],
        ...[snapshotBytes(draft), maxStreamBytes],
        ...[tailOf(draft, nowMs), eventHead(draft)],
        ...[ids.bucket, limits.retentionS * 1000, limits.maxChannelMessages],
        ...[recordOf(draft, nowMs), encodeExtra({ ...nobody, isStream: true })],
        ...[fromUid, draft.force ? 1 : 0, firstPeer, secondPeer],
        ...[eventMark(draft) ?? "", ...topics],
      ],
    );
  }

  return {
    async event(draft) {
      const kind = kindOf(draft, maxStreamBytes);
      if (kind === "s") return start(draft);
      const { key, clientMsgNo, eventId = "", data } = draft;
      const { head, topics } = names.get(key);
      const nowMs = clock();
      return link.run(
        EVENT,
        [head, ...indexesOf(key)],
        [
          ...[key, clientMsgNo, nowMs, windowMs, kind, eventId],
          ...[data, data.length, snapshotBytes(draft), maxStreamBytes],
          ...[tailOf(draft, nowMs), eventMark(draft) ?? "", draft.isCancel ? 1 : 0, ...topics],
        ],
      );
    },

    end({ key, clientMsgNo }, silentSinceMs) {
      const { bucket, head, topics } = names.get(key);
      return link.run(
        END,
        [head, keys.bucket("activeStreams", bucket), ...indexesOf(key)],
        [key, clientMsgNo, clock(), windowMs, silentSinceMs ?? "", ...topics],
      );
    },
  };
}

function kindOf({ type, data, timestampMs }: StreamDraft, maxStreamBytes: number): EventKind {
  const kind = KINDS.get(type);
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
