// The steps in Lua that a command takes, and the note that is kept of it in its channel's slot
// until each recipient has a copy: from there any node can finish it. No state.

import type { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, expiresAtMs } from "../../../broker/model.ts";
import type { CommandDraft } from "../../../broker/ports.ts";
import { errorOfReply } from "../../../redis/errors.ts";
import { bucketOf, type Keys } from "../../../redis/keys.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { encodeRecord, packr, unpackVersioned, WIRE_VERSION } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { dedupeKey, idCounterOf } from "./channel-names.ts";

const ACCEPT = loadScript(lua("command"), lua("dedupe"), lua("inbox"));
const PUT = loadScript(lua("command_put"), lua("inbox"));
const SWEEP = loadScript(lua("command_sweep"));

/** Notes read at once. */
export const NOTES = 10;

/** A command, or what is left to do of it. */
export interface Command {
  /** 0: it has none yet. */
  readonly messageId: number;
  readonly key: ChannelKey;
  readonly record: Buffer;
  readonly payloadBytes: number;
  /** When its copies leave the inboxes, Unix milliseconds. */
  readonly endMs: number;
  /** Before others of its time do. */
  readonly endsEarly: boolean;
  readonly recipients: readonly string[];
  readonly pushOnlyRecipients: readonly string[];
  readonly origin: string | undefined;
}

/** What a step did. */
interface CopiesPut {
  /** Older copies that left full inboxes. */
  readonly dropped: number;
  /** Why a recipient could not be given its copy. */
  readonly failure: BrokerError | undefined;
}

export type Accepted =
  | (CopiesPut & {
      readonly kind: "new";
      readonly messageId: number;
      /** Some recipients have no copy. */
      readonly isNoted: boolean;
    })
  | {
      readonly kind: "retry";
      readonly messageId: number;
      readonly messageSeq: number;
      /** 0: it repeats a command. */
      readonly publicationSeq: number;
      /** That command, where some recipients may not have it. */
      readonly unfinished: Command | undefined;
    };

type StepParts = Pick<RedisStorePorts, "link" | "clock" | "limits">;

/** The command of a draft accepted now. */
export function newCommand({ clock, limits }: StepParts, draft: CommandDraft): Command {
  const { key, payload, recipients, pushOnlyRecipients, origin, expireS } = draft;
  const nowMs = clock();
  const ttlEndMs = nowMs + limits.inboxTtlS * 1000;
  const ownEndMs = expiresAtMs({ timestampMs: nowMs, expireS });
  const record = encodeRecord(
    {
      ...draft,
      header: { noPersist: false, redDot: draft.header.redDot },
      streamNo: undefined,
    },
    nowMs,
  );
  return {
    ...{ messageId: 0, key, record, recipients, pushOnlyRecipients, origin },
    payloadBytes: payload.length,
    endMs: Math.min(ttlEndMs, ownEndMs),
    endsEarly: ownEndMs < ttlEndMs,
  };
}

/**
 * Sends at once: calls for one channel get their ids in the order of the calls. The first `count`
 * recipients get their copies by the same step, and on one server all of `pushOnlyRecipients` are
 * notified. Throws as the link does.
 */
export async function accept(
  parts: StepParts,
  command: Command,
  { draft, count }: { readonly draft: CommandDraft; readonly count: number },
): Promise<Accepted> {
  const { link, limits } = parts;
  const { keys, isCluster } = link;
  const { key, recipients, pushOnlyRecipients } = command;
  const ids = idCounterOf(link, bucketOf(key));
  const now = recipients.slice(0, count);
  const later = recipients.slice(count);
  const isForNobody = recipients.length + pushOnlyRecipients.length === 0;
  const sent = isForNobody ? { ...command, record: NONE } : command;
  const isLeft = later.length > 0 || (isCluster && pushOnlyRecipients.length > 0);
  const reply = await link.run(
    ACCEPT,
    [...[dedupeKey(keys, draft), ids.key, notesOf(keys, key)], ...inboxKeys(keys, now, NUMBERED)],
    [
      ...[...copyArgs(parts, sent), ids.bucket],
      draft.clientMsgNo === "" ? 0 : limits.dedupeWindowS * 1000,
      ...[headOf(command), isLeft ? packr.pack(later) : "", now.length],
      ...usersOf(keys, isCluster ? now : [...now, ...pushOnlyRecipients]),
    ],
  );
  const answer = reply as AcceptReply;
  const [, messageId] = answer;
  if (answer[0] === 0) {
    const [, , dropped, cause, isNoted] = answer;
    const failure = failureOf(cause);
    return { kind: "new", messageId, dropped, failure, isNoted: isNoted === 1 };
  }
  const [, , messageSeq, publicationSeq, note] = answer;
  const unfinished = note ? noted(messageId, note) : undefined;
  return { kind: "retry", messageId, messageSeq, publicationSeq, unfinished };
}

/** As the step's header says. */
type AcceptReply =
  | readonly [0, number, number, Buffer, number]
  | readonly [1, number, number, number, (readonly Buffer[] | null)?];

/**
 * Gives those of `uids` who have none a copy of a noted command; on a Cluster it is one. Throws as
 * the link does.
 */
export async function put(
  parts: StepParts,
  command: Command,
  uids: readonly string[],
): Promise<CopiesPut> {
  const { keys } = parts.link;
  const reply = await parts.link.run(PUT, inboxKeys(keys, uids, [...NUMBERED, "inboxIds"]), [
    ...[...copyArgs(parts, command), command.messageId],
    ...usersOf(keys, uids),
  ]);
  const [dropped, cause] = reply as [number, Buffer]; // as its header says
  return { dropped, failure: failureOf(cause) };
}

/** Where the unfinished commands of a channel's bucket are noted. */
export function notesOf(keys: Keys, key: ChannelKey): string {
  return keys.bucket("commands", bucketOf(key));
}

/** The command of an entry of the notes. Throws `internal` on a newer format. */
export function noted(messageId: number, fields: readonly Buffer[]): Command {
  const [, head = NONE, , record = NONE, , recipients = NONE] = fields;
  const facts = unpackVersioned(head);
  const [, key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin] = facts;
  return {
    messageId,
    key: key as ChannelKey, // as `headOf` wrote it, here or at a node of this format
    record,
    payloadBytes: payloadBytes as number,
    endMs: endMs as number,
    endsEarly: endsEarly as boolean,
    recipients: packr.unpack(recipients) as string[],
    pushOnlyRecipients: pushOnlyRecipients as string[],
    origin: (origin as string | null) ?? undefined,
  };
}

/** As Redis replies to XRANGE. */
export type Notes = readonly (readonly [Buffer, readonly Buffer[]])[];

/** Of message ids. */
interface SweptNotes {
  /** Notes below it have ended. */
  readonly endedId: number;
  /** The first, or `(` and the last of the page before. */
  readonly from: string;
  readonly untilId: number;
}

/**
 * A page of a bucket's notes; none while another node goes through them. The last one has less than
 * `NOTES`. Throws as the link does.
 */
export async function notesToSweep(
  { link, clock }: StepParts,
  bucket: number,
  { endedId, from, untilId }: SweptNotes,
): Promise<Notes> {
  const reply = await link.run(
    SWEEP,
    [link.keys.bucket("commands", bucket), leaseOf(link.keys, bucket)],
    [clock(), endedId, from, untilId, NOTES],
  );
  return reply as Notes;
}

/** What says that a node goes through the notes of a bucket. */
export function leaseOf(keys: Keys, bucket: number): string {
  return keys.bucket("commandSweep", bucket);
}

const NONE = Buffer.alloc(0);
const NUMBERED = ["inboxSeq", "inbox", "inboxExpiry"];

function headOf(command: Command): Buffer {
  const { key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin } = command;
  const facts = [key, payloadBytes, endMs, endsEarly, pushOnlyRecipients, origin ?? null];
  return packr.pack([WIRE_VERSION, ...facts]);
}

function copyArgs(
  { clock, limits }: StepParts,
  { endMs, endsEarly, payloadBytes, record, origin = "" }: Command,
): readonly Arg[] {
  const ends = [endMs, endsEarly ? 1 : 0];
  return [clock(), ...ends, limits.maxInbox, payloadBytes, record, origin];
}

function inboxKeys(
  keys: Keys,
  uids: readonly string[],
  parts: readonly string[],
): readonly string[] {
  return uids.flatMap((uid) => parts.map((part) => keys.user(part, uid)));
}

function usersOf(keys: Keys, uids: readonly string[]): readonly string[] {
  return uids.flatMap((uid) => [uid, keys.user("topic", uid)]);
}

function failureOf(cause: Buffer): BrokerError | undefined {
  return cause.length === 0 ? undefined : errorOfReply(String(cause));
}
