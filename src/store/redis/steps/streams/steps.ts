// The steps in Lua that change streams: what each is given. Issued synchronously; replies: `lua/stream_steps.lua`. No state.

import type { StreamDraft } from "../../../../broker/stream-ports.ts";
import { loadScript, type Script } from "../../../../redis/script.ts";
import type { RedisStoreParts } from "../../parts.ts";
import { ChannelNamesOf } from "../channel-names.ts";
import { dedupeKey } from "../dedupe.ts";
import { beginning, countedBytes, kindOf, tailOf } from "./draft.ts";
import { hintsInReach } from "./hints.ts";

const lua = (name: string) => new URL(`../../lua/${name}.lua`, import.meta.url);
const STEPS = [lua("snapshot"), lua("stream_steps")];
const PLACE = [lua("place"), lua("dedupe"), lua("entry")];
const START = loadScript(lua("stream_start"), ...PLACE, ...STEPS);
const EVENT = loadScript(lua("stream_event"), ...STEPS);
const CANCEL = loadScript(lua("stream_cancel"), ...STEPS);
const INTERRUPT = loadScript(lua("stream_interrupt"), ...STEPS);

/** What `StreamSteps` runs. */
export const streamStepScripts: readonly Script[] = [
  ...[START, EVENT, CANCEL, INTERRUPT],
];

type StreamName = Pick<StreamDraft, "key" | "clientMsgNo">;

/** Each throws as every call of the link. */
export interface StreamSteps {
  /** Throws `bad_request` and `too_large` as well. */
  event(draft: StreamDraft): Promise<unknown>;
  cancel(name: StreamName): Promise<unknown>;
  interrupt(name: StreamName, silentSinceMs: number): Promise<unknown>;
}

export function createStreamSteps({
  link,
  clock,
  limits,
}: Pick<RedisStoreParts, "link" | "clock" | "limits">): StreamSteps {
  const { keys } = link;
  const names = new ChannelNamesOf(link);
  const { maxStreamBytes } = limits;
  const windowMs = limits.dedupeWindowS * 1000;

  function start(draft: StreamDraft): Promise<unknown> {
    const { key, clientMsgNo, fromUid, eventId = "", data } = draft;
    const { ids, topics, peerKeys, peers, ...of } = names.get(key);
    const nowMs = clock();
    const { head, record, extra } = beginning(draft, nowMs);
    const [one = "", other = ""] = peers;
    return link.run(
      START,
      [
        ...[of.head, of.log, ids.key, of.due],
        ...[dedupeKey(keys, draft), keys.channel("act", key)],
        ...hintsInReach(link, key),
        ...peerKeys,
      ],
      [
        ...[key, clientMsgNo, nowMs, windowMs, eventId, data],
        ...[countedBytes(draft), maxStreamBytes, tailOf(draft, nowMs), head],
        ...[ids.bucket, limits.retentionS * 1000, limits.maxChannelMessages],
        ...[record, extra, fromUid],
        ...[draft.force ? 1 : 0, one, other, ...topics],
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
        [head, ...hintsInReach(link, key)],
        [
          ...[key, clientMsgNo, nowMs, windowMs, kind, eventId],
          ...[data, data.length, countedBytes(draft), maxStreamBytes],
          ...[tailOf(draft, nowMs), ...topics],
        ],
      );
    },

    cancel({ key, clientMsgNo }) {
      const { head, topics } = names.get(key);
      return link.run(
        CANCEL,
        [head, ...hintsInReach(link, key)],
        [key, clientMsgNo, clock(), windowMs, ...topics],
      );
    },

    interrupt({ key, clientMsgNo }, silentSinceMs) {
      const { bucket, head, topics } = names.get(key);
      return link.run(
        INTERRUPT,
        [head, keys.bucket("live", bucket), ...hintsInReach(link, key)],
        [key, clientMsgNo, clock(), windowMs, silentSinceMs, ...topics],
      );
    },
  };
}
