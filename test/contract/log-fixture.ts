// Helpers for the suites of logs: a running store, drafts of logs and appends, and the records of a
// read.

import type { Test } from "tap";
import {
  framesIn,
  LOG_START,
  type LogName,
  type LogOffset,
  type OpenFrame,
  openFrame,
  recordsIn,
} from "../../src/broker/log-frame.ts";
import type {
  LogAppend,
  LogAppendResult,
  LogCreation,
  LogDraft,
  LogEnding,
  LogEvent,
  LogHead,
  LogLimit,
  LogLimits,
  LogOrigin,
  LogProducer,
  LogRange,
  LogRead,
  LogStore,
} from "../../src/broker/log-ports.ts";

/** A running store of logs. */
export interface LogFixture {
  readonly store: LogStore;
  /** Events that the store published, in their order. */
  readonly events: readonly LogEvent[];
  /** Returns the time of the store's clock. */
  now(): number;
  /** Moves the store's clock forward. */
  advance(ms: number): void;
  /** Closes the store and starts a new one in the same location. */
  reopen(): Promise<void>;
  /** Writes everything to the database, and removes what is due for removal. */
  sweep(): Promise<unknown>;
  /** Returns descriptions of the rows or keys that the store keeps for logs. */
  leftovers(): Promise<readonly string[]>;
}

export interface LogDriver {
  readonly name: string;
  /** Opens a store without data. It is closed when the test ends. */
  open(t: Test, limits?: Partial<LogLimits>): Promise<LogFixture>;
}

export function free(path: string): LogName {
  return { kind: "free", path };
}

export function bytesOf(text: string): Buffer {
  return Buffer.from(text);
}

/** Returns a draft of an open text log without records. */
export function draftOf(over: Partial<LogDraft> = {}): LogDraft {
  return {
    ...{ contentType: "text/plain", ttlS: undefined, expiresAtMs: undefined },
    ...{ closed: undefined, records: [], origin: undefined, ...over },
  };
}

/** Returns an append of text records. `over` replaces fields. */
export function appendOf(texts: readonly string[], over: Partial<LogAppend> = {}): LogAppend {
  const contentType = texts.length === 0 ? undefined : "text/plain";
  return {
    ...{ records: texts.map(bytesOf), contentType, producer: undefined },
    ...{ order: undefined, close: undefined, ...over },
  };
}

export function producerOf(number: number, epoch = 0, id = "p"): Partial<LogAppend> {
  const producer: LogProducer = { id, epoch, number };
  return { producer };
}

export function forkOf(path: string, offset?: LogOffset, subOffset = 0): LogOrigin {
  return { source: free(path), offset, subOffset };
}

/** The members of the union whose verdict can be `Verdict`. */
type Outcome<Result extends { readonly verdict: string }, Verdict> = Result extends unknown
  ? Verdict extends Result["verdict"]
    ? Result
    : never
  : never;

export async function created(creation: Promise<LogCreation>): Promise<LogHead> {
  return expectOne(await creation, "created").head;
}

export async function appended(
  append: Promise<LogAppendResult>,
): Promise<Outcome<LogAppendResult, "appended" | "repeated">> {
  return expectOne(await append, "appended");
}

export async function fullLimit(result: Promise<LogAppendResult | LogCreation>): Promise<LogLimit> {
  return expectOne(await result, "full").limit;
}

export async function endingOf(store: LogStore, name: LogName): Promise<LogEnding | undefined> {
  const head = await store.logHead(name);
  if (typeof head === "string") throw new Error(`The log is ${head}.`);
  return head.closed;
}

export async function read(
  store: LogStore,
  name: LogName,
  from: LogOffset | undefined = LOG_START,
  maxBytes: LogRange["maxBytes"] = 65_536,
): Promise<Outcome<LogRead, "read">> {
  return expectOne(await store.readLog(name, { from, maxBytes }), "read");
}

/** Returns the records of the log from the offset to the tail, one list for each append. */
export async function appendsOf(
  store: LogStore,
  name: LogName,
  from = LOG_START,
  maxBytes = 65_536,
): Promise<readonly (readonly string[])[]> {
  const appends: string[][] = [];
  let at = from;
  for (;;) {
    const { pieces, next, head } = await read(store, name, at, maxBytes);
    for (const piece of pieces)
      for (const frame of framesIn(piece)) appends.push(recordsIn(frame).map(String));
    if (next.position === head.tail.position) return appends;
    if (next.position === at.position) throw new Error("The read returned no frames.");
    at = next;
  }
}

export function sizeOf(texts: readonly string[]): number {
  const frame: OpenFrame = openFrame(texts.map(bytesOf));
  return frame.bytes.length;
}

function expectOne<Result extends { readonly verdict: string }, Verdict extends Result["verdict"]>(
  result: Result,
  verdict: Verdict,
): Outcome<Result, Verdict> {
  if (result.verdict !== verdict)
    throw new Error(`The verdict is ${JSON.stringify(result)} instead of ${verdict}.`);
  return result as Outcome<Result, Verdict>; // checked above
}
