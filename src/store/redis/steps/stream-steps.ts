// The steps in Lua that change streams: what each is given, and the records that an event and the
// stream's message are kept and published as. Issued synchronously; replies:
// `lua/stream_steps.lua`. No state but names of keys.

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
import { snapshotBytes } from "../../held-bytes.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { areUsersApart, ChannelNamesOf, dedupeKey } from "./channel-names.ts";
import { eventHead, eventTail } from "./stream-record.ts";

const STEPS = [lua("snapshot"), lua("stream_steps")];
const PLACE = [lua("place"), lua("dedupe"), lua("entry")];
const START = loadScript(lua("stream_start"), ...PLACE, ...STEPS);
const EVENT = loadScript(lua("stream_event"), ...STEPS);
const END = loadScript(lua("stream_end"), ...STEPS);

type Kind = "s" | "c" | "n" | "e";
const KINDS = new Map<string, Kind>([
  [STREAM_START, "s"],
  [STREAM_CONTENT, "c"],
  [STREAM_END, "e"],
  ...[...TOOL_CALL_EVENTS].map((type) => [type, "n"] as const),
]);

const NO_TEXT = Buffer.from(streamPayload(""));

type StreamName = Pick<StreamDraft, "key" | "clientMsgNo">;

/** Each throws as every call of the link. */
interface StreamSteps {
  /** Throws `bad_request` and `too_large` as well. */
  event(draft: StreamDraft): Promise<unknown>;
  /** As a viewer wants it, or where it has had no event since then, Unix milliseconds. */
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

  /** `streams` of the users of a channel that its own steps can reach. */
  const indexesOf = (key: ChannelKey) =>
    areUsersApart(link, key) ? [] : usersOf(key).map((uid) => keys.user("streams", uid));

  function start(draft: StreamDraft): Promise<unknown> {
    const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
    const { ids, topics, peerKeys, peers, ...of } = names.get(key);
    const nowMs = clock();
    const [one = "", other = ""] = peers;
    const nobody = { origin: undefined, recipients: undefined };
    return link.run(
      START,
      [
        ...[of.head, of.log, ids.key, of.due],
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
        ...[fromUid, draft.force ? 1 : 0, one, other, ...topics],
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
          ...[tailOf(draft, nowMs), ...topics],
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

/**
 * As `lua/stream_steps.lua` names it: start, content, note (a tool call), end. Throws `bad_request`
 * for a type that no stream has and an invalid time, `too_large` for data no stream could hold.
 */
function kindOf({ type, data, timestampMs }: StreamDraft, maxStreamBytes: number): Kind {
  const kind = KINDS.get(type);
  const isTime = timestampMs === undefined || Number.isFinite(timestampMs);
  if (kind === undefined || !isTime) throw new BrokerError("bad_request");
  if (data.length > maxStreamBytes) throw new BrokerError("too_large");
  return kind;
}

/** What the event's record ends with; it happened at `nowMs` if its producer did not say when. */
function tailOf({ type, data, timestampMs }: StreamDraft, nowMs: number): Buffer {
  return eventTail({ type, data, timestampMs: timestampMs ?? nowMs });
}

/** Of the stream's message. */
function recordOf({ channel, fromUid, clientMsgNo }: StreamDraft, nowMs: number): Buffer {
  return encodeRecord(
    {
      ...{ channel, fromUid, clientMsgNo, payload: NO_TEXT },
      header: { noPersist: false, redDot: true },
      ...{ expireS: 0, streamNo: undefined, tagKey: undefined },
    },
    nowMs,
  );
}
