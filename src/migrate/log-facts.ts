// Builds the facts for logs. `store/redis/library/logs.lua` describes the keys. Keeps no state.

import { framesIn, type LogOffset } from "../broker/log-frame.ts";
import type { Arg } from "../redis/script.ts";
import type { SourceLog } from "../store/embedded/export.ts";
import {
  dueMs,
  type ForkPoint,
  incarnationOf,
  isCopy,
  isExpired,
  type LogState,
  startCheckOf,
  startOf,
  tailOf,
} from "../store/embedded/steps/log-state.ts";
import {
  encodeProducer,
  encodeTail,
  endingIndex,
  logPlace,
  originText,
  referenceText,
} from "../store/redis/steps/log-head.ts";
import { type Fact, fact, type MoveContext, type RowFacts } from "./facts.ts";

/**
 * Returns the facts of a log. Returns no facts for an expired log, unless the log has forks or
 * refers to frames of its source.
 */
export function logFacts({ link, clock }: MoveContext, log: SourceLog): RowFacts {
  const { name, state, frames, producers } = log;
  const { forks } = state;
  const origin = readOrigin(log);
  const { key, base, text } = logPlace(link.keys, name);
  const sizes = [
    ["logs", key],
    ["logProducers", `${base}logProducers:${text}`],
    ["logForks", `${base}logForks:${text}`],
  ] as const;
  const nowMs = clock();
  if (isExpired(state, { wallMs: nowMs, idleMs: nowMs }) && origin === undefined && forks === 0)
    return { expired: ["logs", ...[...producers].map(() => "logProducers" as const)], sizes };
  const facts: Fact[] = [fact("HSET", key, headItems(log))];
  if (frames.length > 0) facts.push(fact("SET", `${base}logFrames:${text}`, [frames]));
  if (origin !== undefined) facts.push(referenceFact(link.keys, log, origin));
  const isDeleted = state.status === "deleted";
  const due = isDeleted ? undefined : dueMs(state);
  if (due !== undefined) facts.push(fact("ZADD", `${base}logExpiry`, [due, text]));
  const kept = isDeleted ? [] : [...producers];
  facts.push(...producerFacts(`${base}logProducers:${text}`, kept));
  return {
    ...{ facts, sizes },
    counts: [
      "logs",
      ...kept.map(() => "logProducers" as const),
      ...(origin === undefined ? [] : ["logForks" as const]),
    ],
  };
}

export function producerFacts(
  key: string,
  producers: Iterable<readonly [string, SourceProducer]>,
): Fact[] {
  const items = [...producers].flatMap(([id, producer]) => [id, encodeProducer(producer)]);
  return items.length > 0 ? [fact("HSET", key, items)] : [];
}

type SourceProducer = Parameters<typeof encodeProducer>[0];

/** Returns the fields that the head of every log has, even if the log belongs to a stream. */
export function stateItems(state: LogState): Arg[] {
  const { records, closed, terms, order } = state;
  const items: Arg[] = ["i", `${incarnationOf(state)}`, "t", terms.contentType];
  items.push("n", encodeTail(tailOf(state), records));
  if (closed !== undefined) items.push("c", `${endingIndex(closed)}`);
  if (order !== undefined) items.push("s", order);
  return items;
}

function headItems(log: SourceLog): readonly Arg[] {
  const { state } = log;
  const { usedMs } = state;
  const { ttlS, expiresAtMs, origin } = state.terms;
  const items = stateItems(state);
  if (ttlS !== undefined) items.push("w", `${ttlS}`, "u", `${usedMs}`);
  if (expiresAtMs !== undefined) items.push("x", `${expiresAtMs}`);
  if (state.status === "deleted") items.push("g", "1");
  if (origin !== undefined) items.push("o", requestOf(log, origin));
  const source = readOrigin(log);
  if (source !== undefined) {
    items.push("b", encodeTail(startOffset(log), firstRecord(log)));
    items.push("r", referenceOf(log, source));
  }
  return items;
}

/**
 * Returns the origin of a fork that reads inherited frames from its source. Returns `undefined` for
 * a fork that stores a copy of these frames, and for a log that is not a fork.
 */
function readOrigin({ state }: SourceLog): ForkPoint | undefined {
  const { origin } = state.terms;
  return origin === undefined || isCopy(origin) ? undefined : origin;
}

function startOffset({ state }: SourceLog): LogOffset {
  const position = startOf(state);
  return { position, check: position === 0 ? 0 : startCheckOf(state) };
}

/** Returns the number of records that a fork inherits. */
function firstRecord({ state, frames }: SourceLog): number {
  const [frame] = framesIn(frames);
  return frame?.first ?? state.records;
}

function requestOf({ state }: SourceLog, origin: ForkPoint): string {
  const { source, offset, subOffset, hasOwnExpiry } = origin;
  const { ttlS, expiresAtMs } = hasOwnExpiry
    ? state.terms
    : { ttlS: undefined, expiresAtMs: undefined };
  return originText({ origin: { source, offset, subOffset }, ttlS, expiresAtMs });
}

/** Returns the reference of a fork. Repeated migrations must create the same reference. */
function referenceOf({ number, name }: SourceLog, { source }: ForkPoint): string {
  return referenceText(source, name, number.toString(16).padStart(16, "0"));
}

function referenceFact(keys: MoveContext["link"]["keys"], log: SourceLog, origin: ForkPoint): Fact {
  const { base, text } = logPlace(keys, origin.source);
  return fact("SADD", `${base}logForks:${text}`, [referenceOf(log, origin)]);
}
