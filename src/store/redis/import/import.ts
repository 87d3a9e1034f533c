// A Redis without nodes as the target of a move: rows are written, and looked for afterwards, as facts about keys. Every write is safe to repeat.
// State: none but what Redis holds.

import { createHash } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import { type Arg, loadScript, type Script } from "../../../redis/script.ts";
import type { Moved } from "../../moved.ts";
import { idCounterKeys } from "../steps/message-ids.ts";
import { type Fact, type ImportContext, joined, timeOf } from "./facts.ts";
import { factsOf } from "./rows.ts";
import type { MoveTarget } from "./target.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const writing = (name: string) => loadScript(lua(name), lua("import_fence"));
const STREAM = writing("import_stream");
const DIGEST = loadScript(lua("import_digest"));
const FIRST = writing("import_first");
const LIST = writing("import_list");
const IDS = writing("import_ids");
const WRITE = writing("import_write");

/** What the link must know. */
export const importScripts: readonly Script[] = [
  ...[STREAM, DIGEST, FIRST, LIST, IDS, WRITE],
];

/** Redis lost what a move had written: it is to begin again. */
export class MoveGap extends BrokerError {
  constructor(what: string) {
    super("internal", {
      message: `Redis lost a part of what was moved (before ${what})`,
    });
    this.name = "MoveGap";
  }
}

type Link = MoveTarget["link"];

/** Writes rows. Resolves when Redis has all of them. Throws as the link does, and MoveGap. */
export async function writeRows(
  target: MoveTarget,
  context: ImportContext,
  rows: readonly Moved[],
): Promise<void> {
  const facts = joined(rows.flatMap((moved) => factsOf(context, moved)));
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
    line.run(() => step(target, IDS, { key, args: [messageId] })),
  );
  await Promise.all(raised);
}

async function write(target: MoveTarget, fact: Fact): Promise<void> {
  const { key } = fact;
  const items = (
    command: string,
    values: readonly Arg[],
    { keepMs = 0, flag = "" } = {},
  ) => step(target, WRITE, { key, args: [command, flag, keepMs, ...values] });
  switch (fact.kind) {
    case "hash":
      await items("HSET", fact.items);
      return;
    case "set":
      await items("SADD", fact.items, { keepMs: fact.keepMs ?? 0 });
      return;
    case "scores":
      await items("ZADD", fact.items, { flag: fact.stays });
      return;
    case "value":
      await items("SET", [fact.value], { keepMs: fact.keepMs ?? 0 });
      return;
    case "newest":
      await step(target, FIRST, { key, args: [fact.value, fact.keepMs] });
      return;
    case "list":
      await step(target, LIST, { key, args: fact.items });
      return;
    case "entries":
      await writeEntries(target, fact);
  }
}

type Entries = Extract<Fact, { kind: "entries" }>;

async function writeEntries(target: MoveTarget, fact: Entries): Promise<void> {
  const { key, afterSeq, entries, keepMs } = fact;
  const args: Arg[] = [afterSeq, keepMs];
  for (const { seq, fields } of entries)
    args.push(seq, fields.length, ...fields);
  const added = await step(target, STREAM, { key, args });
  if (added === -1) throw new MoveGap(`${key} ${entries[0]?.seq ?? ""}`);
}

/** A step that writes, for as long as this process may. */
async function step(
  { link, until }: MoveTarget,
  script: Script,
  { key, args }: { readonly key: string; readonly args: readonly Arg[] },
): Promise<unknown> {
  const reply = await link.run(script, [key], [...args, until(key)]);
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
  const facts = joined(rows.flatMap((moved) => factsOf(context, moved)));
  const looks = await Promise.all(
    facts.map((fact) => line.run(() => isThere(link, fact))),
  );
  const others = facts.filter((_, at) => looks[at] !== true);
  return others.map(({ key }) => `${JSON.stringify(key)} differs`);
}

async function isThere(link: Link, fact: Fact): Promise<boolean> {
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
      if (fact.isHint === true) return true;
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
async function isSameStream(link: Link, fact: Entries): Promise<boolean> {
  const { key, entries, keepMs } = fact;
  // Of a log all there is between its ends; between copies in an inbox there may be some that have ended since they were written.
  const ranges =
    keepMs === 0
      ? [entries[0]?.seq ?? 0, entries.at(-1)?.seq ?? 0]
      : entries.flatMap(({ seq }) => [seq, seq]);
  const reply = await link.run(DIGEST, [key], ranges);
  const [count, digest] = reply as [number, Buffer]; // as its header says
  const hash = createHash("sha1");
  for (const { seq, fields } of entries)
    for (const text of [seq, ...fields]) {
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
