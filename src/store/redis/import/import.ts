// A Redis without nodes as the target of a move: rows are written, and looked for afterwards, as facts about keys. Every write is safe to repeat.
// State: none but what Redis holds, and which calls of a move wait.

import { createHash } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import type { Moved } from "../../moved.ts";
import { lua } from "../parts.ts";
import { idCounterKeys } from "../steps/channel-names.ts";
import {
  type Fact,
  factsOf,
  type ImportContext,
  placeOf,
  timeOf,
} from "./facts.ts";

const WRITE = loadScript(lua("import_write"));
const DIGEST = loadScript(lua("import_digest"));

export type MoveLink = Pick<
  RedisLink,
  "call" | "run" | "keys" | "isCluster" | "settings"
>;

export interface MoveTarget {
  readonly link: MoveLink;
  /** Bounds what waits for Redis at once: less than the link takes, whatever a page comes to. */
  readonly line: Semaphore;
  /**
   * Until when the server of a key takes this process's writes, Unix milliseconds of that server's clock: one that was frozen writes nothing over what
   * others did since. Throws `unavailable` when it may not write any more.
   */
  readonly until: (key: string) => number;
}

const MAX_AT_ONCE = 256;
const SHARE = 4;

/** The target of one move; everything it asks of the link stands in one line. */
export function moveTarget(
  link: MoveLink,
  until: MoveTarget["until"],
): MoveTarget {
  const share = Math.floor(link.settings.maxInFlight / SHARE);
  return { link, until, line: new Semaphore(Math.min(MAX_AT_ONCE, share)) };
}

/** Redis lost what a move had written: it is to begin again. */
export class MoveGap extends BrokerError {
  constructor(what: string) {
    super("internal", {
      message: `Redis lost a part of what was moved (before ${what})`,
    });
    this.name = "MoveGap";
  }
}

/** Writes rows. Resolves when Redis has all of them. Throws as the link does, and MoveGap. */
export async function writeRows(
  target: MoveTarget,
  context: ImportContext,
  rows: readonly Moved[],
): Promise<void> {
  const facts = factsOf(context, rows);
  const writes = facts.map((fact) =>
    target.line.run(() => write(target, fact)),
  );
  for (const result of await Promise.allSettled(writes))
    if (result.status === "rejected") throw result.reason;
}

/** No message id up to `messageId` is given again. Throws as the link does. */
export async function raiseIds(
  target: MoveTarget,
  messageId: number,
): Promise<void> {
  const { line, link } = target;
  const raised = idCounterKeys(link).map((key) =>
    line.run(() => put(target, key, ["ids", 0, messageId])),
  );
  await Promise.all(raised);
}

async function write(target: MoveTarget, fact: Fact): Promise<void> {
  const { key } = fact;
  if ((await put(target, key, argsOf(fact))) === 1) return;
  const next = fact.kind === "entries" ? fact.entries[0]?.seq : undefined;
  throw new MoveGap(`${key} ${next ?? ""}`);
}

/** What the step is given of a fact: how it is written, for how long it is kept, and what is written. */
function argsOf(fact: Fact): readonly Arg[] {
  switch (fact.kind) {
    case "hash":
      return ["HSET", 0, ...fact.items];
    case "set":
      return ["SADD", fact.keepMs, ...fact.items];
    case "scores":
      return ["ZADD", 0, fact.stays, ...fact.items];
    case "value":
      return ["SET", fact.keepMs, fact.value];
    case "newest":
      return ["newest", fact.keepMs, fact.value];
    case "list":
      return ["list", 0, ...fact.items];
    case "entries":
      return [
        ...["entries", fact.keepMs, fact.afterSeq],
        ...fact.entries.flatMap((entry) => [
          ...[placeOf(entry), entry.fields.length, ...entry.fields],
        ]),
      ];
  }
}

/** Writes for as long as this process may. */
async function put(
  { link, until }: MoveTarget,
  key: string,
  args: readonly Arg[],
): Promise<unknown> {
  const reply = await link.run(WRITE, [key], [until(key), ...args]);
  if (reply === null)
    throw new BrokerError("unavailable", {
      message: "The right to move data was lost before this was written",
    });
  return reply;
}

/** Looks for rows in Redis; of each that is missing or differs its key in words. Throws as the link does. */
export async function differencesOf(
  { link, line }: MoveTarget,
  context: ImportContext,
  rows: readonly Moved[],
): Promise<readonly string[]> {
  const facts = factsOf(context, rows);
  const looks = await Promise.all(
    facts.map((fact) => line.run(() => isThere(link, fact))),
  );
  const others = facts.filter((_, at) => looks[at] !== true);
  return others.map(({ key }) => `${JSON.stringify(key)} differs`);
}

async function isThere(link: MoveLink, fact: Fact): Promise<boolean> {
  const { key } = fact;
  switch (fact.kind) {
    case "hash": {
      const names = fact.items.filter((_, at) => at % 2 === 0);
      const found = await link.call("hmget", key, ...names);
      return areSame(
        fact.items.filter((_, at) => at % 2 === 1),
        found,
      );
    }
    case "set": {
      const found = await link.call("smismember", key, ...fact.items);
      return (found as readonly number[]).every((one) => one === 1);
    }
    case "scores": {
      if (fact.mayChange === true) return true;
      const members = fact.items.filter((_, at) => at % 2 === 1);
      const found = await link.call("zmscore", key, ...members);
      return areSame(
        fact.items.filter((_, at) => at % 2 === 0),
        found,
      );
    }
    case "value":
      return areSame([fact.value], [await link.call("get", key)]);
    case "newest": {
      const found = String(await link.call("get", key));
      return found === fact.value || timeOf(found) > timeOf(fact.value);
    }
    case "list":
      return areSame(fact.items, await link.call("lrange", key, 0, -1));
    case "entries":
      return isSameStream(link, fact);
  }
}

function areSame(wanted: readonly Arg[], found: unknown): boolean {
  const values = found as readonly (Buffer | null)[]; // as Redis replies
  return (
    values.length === wanted.length &&
    wanted.every((one, at) => {
      const value = values[at];
      return value != null && bytesOf(one).equals(value);
    })
  );
}

/** Compares checksums: what a log holds stays in Redis. */
async function isSameStream(
  link: MoveLink,
  fact: Extract<Fact, { kind: "entries" }>,
): Promise<boolean> {
  const { key, entries, keepMs } = fact;
  // Of a log all there is between its ends; between copies in an inbox there may be some that have ended since they were written.
  const ranges =
    keepMs === 0
      ? [entries[0]?.seq ?? 0, entries.at(-1)?.seq ?? 0]
      : entries.flatMap(({ seq }) => [seq, seq]);
  const reply = await link.run(DIGEST, [key], ranges);
  const [count, digest] = reply as [number, Buffer]; // as its header says
  const hash = createHash("sha1");
  for (const entry of entries)
    for (const text of [placeOf(entry), ...entry.fields]) {
      const bytes = bytesOf(text);
      const size = Buffer.alloc(4);
      size.writeUInt32BE(bytes.length);
      hash.update(size).update(bytes);
    }
  return count === entries.length && String(digest) === hash.digest("hex");
}

function bytesOf(text: Arg): Buffer {
  return Buffer.isBuffer(text) ? text : Buffer.from(`${text}`);
}
