// Commands in their channel's slot: the id they get, once per sender and clientMsgNo, and the note that is kept until each recipient has a copy.
// No state.

import type { ChannelKey } from "../../broker/model.ts";
import type { CommandDraft } from "../../broker/ports.ts";
import { BUCKETS, bucketOf } from "../../redis/keys.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import { dedupeKey } from "./dedupe.ts";
import {
  type Command,
  decodeNoted,
  encodeNoted,
  type NotedCommand,
} from "./inbox-record.ts";
import type { RedisStoreParts } from "./parts.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const claimScript = loadScript(lua("inbox_claim"), lua("dedupe"));
const doneScript = loadScript(lua("inbox_done"));
const staleScript = loadScript(lua("inbox_stale"));

/** What the link must know. */
export const claimScripts: readonly Script[] = [
  claimScript,
  doneScript,
  staleScript,
];

/** Commands taken per bucket and call, and their bytes, about. */
const SOME = 100;
const SOME_BYTES = 1024 * 1024;
/** What a sweep does, to `onProblem`. */
export const FINISHING = "A command could not be given to all its recipients";

/** `first`: what is answered; its pub is 0 where it was a command. */
export interface Claim {
  readonly messageId: number;
  readonly first:
    | { readonly messageSeq: number; readonly pub: number }
    | undefined;
}

type ClaimParts = Pick<RedisStoreParts, "link" | "limits" | "onProblem">;

/** Sends at once: calls for one channel get their ids in the order of the calls. */
export async function claim(
  { link, limits }: ClaimParts,
  draft: CommandDraft,
  { command, nowMs }: { command: NotedCommand; nowMs: number },
): Promise<Claim> {
  const { keys } = link;
  const bucket = bucketOf(draft.key);
  const isEmpty = draft.recipients.length + draft.alsoTell.length === 0;
  const reply = await link.run(
    claimScript,
    [
      dedupeKey(keys, draft),
      keys.bucket("id", bucket),
      ...noteKeys(link, bucket),
    ],
    [
      nowMs,
      bucket,
      draft.dedupe ? limits.dedupeWindowS * 1000 : 0,
      isEmpty ? "" : encodeNoted(command),
    ],
  );
  const [messageId = 0, messageSeq, pub] = reply as number[];
  if (messageSeq === undefined || pub === undefined)
    return { messageId, first: undefined };
  return { messageId, first: { messageSeq, pub } };
}

/** Each recipient has it: nobody need finish it. Where that cannot be noted, a sweep finds nothing left to do. */
export async function forget(
  { link, onProblem }: ClaimParts,
  command: Pick<Command, "key" | "messageId">,
): Promise<void> {
  const keys = noteKeys(link, bucketOf(command.key));
  try {
    await link.run(doneScript, keys, [command.messageId]);
  } catch (error) {
    onProblem(error, "A finished command could not be marked as done");
  }
}

/** A command that some recipients may not have; undefined: all have it, or it was a message. */
export async function unfinished(
  { link }: ClaimParts,
  key: ChannelKey,
  messageId: number,
): Promise<Command | undefined> {
  const [, notes = ""] = noteKeys(link, bucketOf(key));
  const noted = await link.call("hget", notes, messageId);
  return noted === null ? undefined : commandOf(messageId, noted);
}

/**
 * Commands of all channels that were begun or last taken at `untilMs` or before, some of each bucket; none of buckets whose server is away. Those are
 * taken at `nowMs`: the next call gives others. What cannot be read is left to newer builds.
 */
export async function takeUnfinished(
  { link, onProblem }: ClaimParts,
  { untilMs, nowMs }: { readonly untilMs: number; readonly nowMs: number },
): Promise<readonly Command[]> {
  const args = [untilMs, nowMs, SOME, SOME_BYTES];
  const results = await Promise.allSettled(
    Array.from({ length: BUCKETS }, (_, bucket) =>
      link.run(staleScript, noteKeys(link, bucket), args),
    ),
  );
  const found: Command[] = [];
  const away = results.find(({ status }) => status === "rejected");
  if (away?.status === "rejected") onProblem(away.reason, FINISHING);
  const replies = results.flatMap((result) =>
    result.status === "fulfilled" ? [result.value] : [],
  );
  for (const reply of replies as Buffer[][])
    for (let at = 0; at + 1 < reply.length; at += 2)
      try {
        found.push(commandOf(Number(reply[at]), reply[at + 1]));
      } catch (error) {
        onProblem(error, FINISHING);
      }
  return found;
}

function commandOf(messageId: number, noted: unknown): Command {
  return { ...decodeNoted(noted as Buffer), messageId };
}

function noteKeys(
  { keys }: RedisStoreParts["link"],
  bucket: number,
): readonly string[] {
  return [keys.bucket("cmdat", bucket), keys.bucket("cmd", bucket)];
}
