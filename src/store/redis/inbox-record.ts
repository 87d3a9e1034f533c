// A command on its way into inboxes, as it is noted in the channel's slot until each recipient
// has a copy, so that any node can finish it. Pure.

import { type ChannelKey, expiresAtMs } from "../../broker/model.ts";
import type { CommandDraft } from "../../broker/ports.ts";
import {
  encodeRecord,
  packr,
  unpackVersioned,
  WIRE_VERSION,
} from "../../redis/wire.ts";

/** A command before it has its id. */
export interface NotedCommand {
  readonly key: ChannelKey;
  readonly record: Uint8Array;
  readonly payloadBytes: number;
  /** When its copies leave the inboxes, Unix milliseconds. */
  readonly endMs: number;
  /** Before others of its time do. */
  readonly endsEarly: boolean;
  readonly recipients: readonly string[];
  readonly alsoTell: readonly string[];
  readonly origin: string | undefined;
}

/** A command that has its id. */
export interface Command extends NotedCommand {
  readonly messageId: number;
}

/** The command of a draft accepted at `nowMs`; its copies wait `ttlMs` at most. */
export function notedCommand(
  draft: CommandDraft,
  nowMs: number,
  ttlMs: number,
): NotedCommand {
  const { key, payload, recipients, alsoTell, origin, expireS } = draft;
  const ttlEndMs = nowMs + ttlMs;
  const ownEndMs = expiresAtMs({ timestampMs: nowMs, expireS });
  const record = encodeRecord({
    ...draft,
    timestampMs: nowMs,
    header: { noPersist: false, redDot: draft.header.redDot },
    streamNo: undefined,
  });
  return {
    ...{ key, record, recipients, alsoTell, origin },
    payloadBytes: payload.length,
    endMs: Math.min(ttlEndMs, ownEndMs),
    endsEarly: ownEndMs < ttlEndMs,
  };
}

export function encodeNoted(command: NotedCommand): Buffer {
  return packr.pack([
    WIRE_VERSION,
    command.key,
    command.record,
    command.payloadBytes,
    command.endMs,
    command.endsEarly,
    command.recipients,
    command.alsoTell,
    command.origin ?? null,
  ]);
}

/** Throws `internal` on a newer format. */
export function decodeNoted(noted: Uint8Array): NotedCommand {
  const fields = unpackVersioned(noted);
  const [, key, record, payloadBytes, endMs, endsEarly] = fields;
  const [recipients, alsoTell, origin] = fields.slice(6);
  return {
    key: key as ChannelKey,
    record: record as Uint8Array,
    payloadBytes: payloadBytes as number,
    endMs: endMs as number,
    endsEarly: endsEarly as boolean,
    recipients: recipients as string[],
    alsoTell: alsoTell as string[],
    origin: (origin as string | null) ?? undefined,
  };
}
