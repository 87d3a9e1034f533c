// The step that stores a message, as it is called. No state. Nothing is awaited before it is sent.

import { BrokerError } from "../../broker/errors.ts";
import type { MessageDraft } from "../../broker/ports.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import { encodeExtra, encodeRecord, messageFrame } from "../../redis/wire.ts";
import type { ChannelNames } from "./channel-names.ts";
import { dedupeKey } from "./dedupe.ts";
import type { RedisStoreParts } from "./parts.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const APPEND = loadScript(lua("append"), lua("dedupe"), lua("place"));

/** What the link must know. */
export const appendScripts: readonly Script[] = [APPEND];

const KEEP = 1;
const RED_DOT = 2;
const DEDUPE = 4;
const MAX_EXPIRE_S = 0xffff_ffff;

export interface Placed {
  readonly messageId: number;
  /** 0: not kept. */
  readonly messageSeq: number;
  /** 0: it repeats a command. */
  readonly pub: number;
  /** These are of the first message. */
  readonly isRetry: boolean;
  /** When it was accepted, Unix milliseconds. */
  readonly atMs: number;
  /** What the step told the channel's topics, where it has some. */
  readonly frame: () => Buffer;
}

/** Throws `bad_request`, and as the link does. */
export async function runAppend(
  parts: Pick<RedisStoreParts, "link" | "clock" | "limits">,
  names: ChannelNames,
  draft: MessageDraft,
): Promise<Placed> {
  const { link, clock, limits } = parts;
  const atMs = clock();
  const endsAtMs = endOf(draft, atMs);
  const record = encodeRecord({ ...draft, timestampMs: atMs });
  const extra = encodeExtra({ ...draft, startData: undefined });
  const { head, log, own, id, due, exp, dot } = names;
  const dd = draft.dedupe ? dedupeKey(link.keys, draft) : head; // any key of the slot stands for one that is not read
  const reply = await link.run(
    APPEND,
    [head, log, own, id, due, exp, dot, dd, ...names.peerKeys],
    [
      ...[names.bucket, atMs, draft.key, record, extra, draft.fromUid],
      ...[flagsOf(draft), endsAtMs],
      ...[limits.dedupeWindowS * 1000, limits.retentionS * 1000],
      limits.maxChannelMessages,
      ...names.peers,
      ...names.topics,
    ],
  );
  const [messageId = 0, messageSeq = 0, pub = 0, retry] = reply as number[]; // as its header says
  const place = { messageId, messageSeq, pub };
  const frame = () => messageFrame({ ...place, record, extra });
  return { ...place, isRetry: retry !== undefined, atMs, frame };
}

function flagsOf({ header, dedupe }: MessageDraft): number {
  return (
    (header.noPersist ? 0 : KEEP) |
    (header.redDot ? RED_DOT : 0) |
    (dedupe ? DEDUPE : 0)
  );
}

/** Unix milliseconds; 0: never. */
function endOf({ expireS }: MessageDraft, atMs: number): number {
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    throw new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return expireS === 0 ? 0 : atMs + expireS * 1000;
}
