// Streams of the Durable Streams protocol. The client reads and writes them over HTTP. A reader
// first catches up with plain requests. Then it follows the stream with server-sent events, or with
// long polls on platforms whose `fetch` returns only whole bodies. Owns the set of active readers
// and writers.

import { type Deferred, deferred } from "../lib/deferred.ts";
import type { RecordStream, RecordStreamOptions, StreamRecord } from "./api.ts";
import { bytesOf } from "./bytes.ts";
import { reconnectDelayMs } from "./connector.ts";
import { asJindouError, hasCode, JindouError } from "./errors.ts";
import { badOption, checkNames, type Settings } from "./options.ts";
import type { OwnBytes } from "./socket.ts";
import { now, timeLimit } from "./waiting.ts";

interface RecordStreamsPorts {
  readonly settings: Settings;
  onError(error: JindouError): void;
}

interface Call {
  readonly query?: string;
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | OwnBytes | null | undefined;
  readonly limitMs: number;
}

/** Records from one reply or one event. */
interface Batch {
  readonly records: readonly unknown[];
  /** Offset after the records. */
  readonly next: string;
  readonly isUpToDate: boolean;
  readonly isEnd: boolean;
}

interface Append extends Deferred {
  /** Body of the request. `undefined` means that the request closes the stream. */
  readonly body: string | OwnBytes | undefined;
}

const BEGINNING = "-1";
const JSON_TYPE = "application/json";
/** Maximum time without bytes on a live connection. A server sends bytes at least every 60 s. */
const MAX_SILENCE_MS = 75_000;
/** Minimum duration of a live call without new records. A shorter call is treated as failed. */
const MIN_WAIT_MS = 1000;
/**
 * Time after a lost offset during which the pauses continue to grow, because two servers may
 * disagree about the stream's offsets.
 */
const UNSETTLED_MS = 60_000;
/** Maximum total length, in characters, of the appends joined in one request. */
const MAX_JOINED = 65_536;

export class RecordStreams {
  readonly #ports: RecordStreamsPorts;
  readonly #active = new Set<Calls>();
  #closed: JindouError | undefined;

  constructor(ports: RecordStreamsPorts) {
    this.#ports = ports;
  }

  /** Returns the stream without making a call. Throws `bad_option` if an argument is invalid. */
  open<T>(path: string, options: RecordStreamOptions = {}): RecordStream<T> {
    checkNames("stream", options, "contentType producer");
    const { settings, onError } = this.#ports;
    const [origin = ""] = /^\w+:\/\/[^/?#]+/.exec(settings.url.replace(/^ws/, "http")) ?? [];
    const url = path.startsWith("/") ? origin + path : path;
    if (!/^https?:\/\/[^/]+\/v1\/stream\/./.test(url))
      throw badOption("stream: the path must begin with /v1/stream/");
    const isSigned = /[?&]sig=/.test(url);
    const sendsToken = url.startsWith(`${origin}/`) && !isSigned;
    const active = this.#active;
    const assertOpen = () => {
      if (this.#closed !== undefined) throw this.#closed;
    };
    const calls = () => new Calls({ settings, onError, url, sendsToken, active, assertOpen });
    const writer = new Writer(calls(), settings, options);
    const write = async (encode: () => Append["body"]) => {
      assertOpen();
      return writer.write(encode());
    };
    const records = (offset = BEGINNING): AsyncIterableIterator<StreamRecord<T>> => {
      assertOpen();
      return new Reader<T>(calls(), settings, offset);
    };
    return {
      records,
      append: (data) => write(() => encoded(data, options.contentType)),
      close: () => write(() => undefined),
      [Symbol.asyncIterator]: () => records(),
    };
  }

  /** Ends all pauses, and restarts the live readers, because their connections may be dead. */
  opened(): void {
    for (const calls of this.#active) calls.restart();
  }

  close(error: JindouError): void {
    this.#closed = error;
    for (const calls of this.#active) calls.end();
  }
}

interface CallsPorts extends RecordStreamsPorts {
  readonly url: string;
  readonly sendsToken: boolean;
  readonly active: Set<Calls>;
  /** Throws an error if the client is closed. */
  assertOpen(): void;
}

/** The HTTP calls of one reader or writer, one at a time. */
class Calls {
  /** True if the calls wait for new records. `restart` may then abort the current call. */
  isLive = false;
  readonly #ports: CallsPorts;
  #current: AbortController | undefined;
  #pause: Deferred | undefined;
  #failures = 0;
  /** True if `restart` has aborted the current call. */
  #isRestarted = false;
  #hasEnded = false;

  constructor(ports: CallsPorts) {
    this.#ports = ports;
  }

  /** Returns true if no further calls follow. Throws an error if the client is closed. */
  hasEnded(): boolean {
    this.#ports.assertOpen();
    return this.#hasEnded;
  }

  /**
   * Makes one call and reads the reply with `read`. Rejects with the server's error if the call is
   * refused.
   */
  async call<T>(
    { query, limitMs, method = "GET", body = null, ...call }: Call,
    read: (reply: Response) => T | Promise<T>,
  ): Promise<T> {
    this.#ports.assertOpen();
    if (typeof fetch === "undefined") throw new JindouError("no_fetch");
    const { url, sendsToken, settings, active } = this.#ports;
    active.add(this);
    const abort = new AbortController();
    this.#current = abort;
    this.#isRestarted = false;
    const stop = this.limit(limitMs);
    try {
      const headers = { ...call.headers, ...(sendsToken && (await credentialOf(settings))) };
      const target = query === undefined ? url : `${url}${url.includes("?") ? "&" : "?"}${query}`;
      // a cached reply could belong to an earlier stream with this path
      const { signal } = abort;
      const options = { method, body, headers, signal, cache: "no-cache" } as const;
      const reply = await fetch(target, options);
      if (!reply.ok) throw await refusalOf(reply);
      return await read(reply);
    } finally {
      stop();
    }
  }

  /** Aborts the current call after `ms` unless the returned function is called before that. */
  limit(ms: number): () => void {
    const current = this.#current;
    return timeLimit(ms, () => current?.abort(new JindouError("timeout")));
  }

  /**
   * Reports the error of a failed call, then waits until the call may be repeated. Rejects with the
   * error if a repeated call could not succeed.
   */
  async failed(thrown: unknown): Promise<void> {
    const { onError, assertOpen } = this.#ports;
    assertOpen();
    if (this.#isRestarted || this.#hasEnded) return;
    const error = asJindouError(thrown, "connection_lost");
    if (!error.retry) throw error;
    onError(error);
    await this.pause(error.retryAfterMs);
  }

  /**
   * Waits for at least `minMs`, unless `restart` or `end` is called. The pauses grow until
   * `succeeded` is called.
   */
  async pause(minMs = 0): Promise<void> {
    const { settings, assertOpen } = this.#ports;
    this.#pause = deferred();
    if (this.#hasEnded) this.#pause.resolve(); // a handler of the error has ended the calls
    const delayMs = reconnectDelayMs(this.#failures, settings.reconnect);
    const stop = timeLimit(Math.max(delayMs, minMs), this.#pause.resolve);
    this.#failures += 1;
    await this.#pause.promise;
    stop();
    assertOpen();
  }

  succeeded(): void {
    this.#failures = 0;
  }

  restart(): void {
    this.#pause?.resolve();
    if (!this.isLive) return;
    this.#isRestarted = true;
    this.#current?.abort();
  }

  /** Ends the current call and pause. */
  end(): void {
    this.#hasEnded = true;
    this.idle();
    this.#current?.abort();
    this.#pause?.resolve();
  }

  idle(): void {
    this.#ports.active.delete(this);
  }
}

class Reader<T> implements AsyncIterableIterator<StreamRecord<T>> {
  readonly #calls: Calls;
  readonly #requestMs: number;
  readonly #records: AsyncGenerator<StreamRecord<T>, undefined>;
  /** Content type of the stream, known after the first reply. */
  #contentType = "";
  /** Offset at which the next batch begins. */
  #start = BEGINNING;
  /**
   * Number of records to skip at the beginning of the next batch, because the app already has them.
   */
  #skipped = 0;

  constructor(calls: Calls, settings: Settings, offset: string) {
    this.#calls = calls;
    this.#requestMs = settings.timeouts.requestMs;
    const [start = BEGINNING, skipped] = offset.split("+");
    this.#start = start;
    this.#skipped = Number(skipped ?? 0);
    this.#records = this.#read();
  }

  next(): Promise<IteratorResult<StreamRecord<T>, undefined>> {
    return this.#records.next();
  }

  return(): Promise<IteratorResult<StreamRecord<T>, undefined>> {
    this.#calls.end();
    return this.#records.return(undefined);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async *#read(): AsyncGenerator<StreamRecord<T>, undefined> {
    let restarted = false;
    let settledAtMs = 0;
    const succeeded = () => {
      if (now() > settledAtMs) this.#calls.succeeded();
    };
    try {
      while (!this.#calls.hasEnded()) {
        const { isLive } = this.#calls;
        const startMs = now();
        let isStream = false;
        let hasNews = false;
        const hasWaited = () => isStream && now() - startMs > MIN_WAIT_MS;
        try {
          for await (const { records, next, isUpToDate, isEnd } of this.#batches()) {
            const start = this.#start;
            isStream = true;
            hasNews ||= records.length > 0 && next !== start;
            if (hasNews) succeeded();
            for (const [index, data] of records.entries()) {
              if (index < this.#skipped) continue;
              if (this.#calls.hasEnded()) return undefined;
              const isLast = index === records.length - 1;
              const offset = isLast ? next : `${start}+${index + 1}`;
              yield { data: data as T, offset, restarted }; // the app has chosen the type `T`
              restarted = false;
            }
            this.#skipped = Math.max(0, this.#skipped - records.length);
            this.#start = next;
            if (isEnd) return undefined;
            if (isUpToDate) this.#calls.isLive = true;
          }
          // the error causes a pause, without which a call that always ends at once would repeat in
          // a tight loop
          if (!hasNews && !hasWaited() && isLive === this.#calls.isLive)
            throw new JindouError("connection_lost", { message: NOT_A_STREAM });
          succeeded();
        } catch (error) {
          if (hasWaited()) succeeded();
          if (hasCode(error, "offset_lost") && this.#start !== BEGINNING) {
            this.#start = BEGINNING;
            this.#skipped = 0;
            this.#calls.isLive = false;
            restarted = true;
            settledAtMs = now() + UNSETTLED_MS;
            await this.#calls.pause();
          } else await this.#calls.failed(error);
        }
      }
      return undefined;
    } finally {
      this.#calls.end();
    }
  }

  async *#batches(): AsyncGenerator<Batch> {
    const place = `offset=${encodeURIComponent(this.#start)}`;
    if (!this.#calls.isLive || !canStream()) {
      const query = this.#calls.isLive ? `${place}&live=long-poll` : place;
      const limitMs = this.#calls.isLive ? MAX_SILENCE_MS : this.#requestMs;
      yield await this.#calls.call({ query, limitMs }, (reply) => this.#wholeBatch(reply));
      return;
    }
    const call = { query: `${place}&live=sse`, limitMs: this.#requestMs };
    const reply = await this.#calls.call(call, (reply) => reply);
    const isBase64 = reply.headers.has("stream-sse-data-encoding");
    let records: readonly unknown[] = [];
    for await (const { event, data } of this.#events(reply)) {
      if (event === "data") records = this.#recordsOf(isBase64 ? bytesOfBase64(data) : data);
      if (event !== "control") continue;
      const { streamNextOffset: next, upToDate, streamClosed } = JSON.parse(data);
      yield { records, next, isUpToDate: upToDate === true, isEnd: streamClosed === true };
      records = [];
    }
  }

  async #wholeBatch(reply: Response): Promise<Batch> {
    const { headers, status } = reply;
    const next = headers.get("stream-next-offset");
    if (next === null) throw new JindouError("connection_lost", { message: NOT_A_STREAM });
    if (status !== 204) this.#contentType = headers.get("content-type") ?? "";
    const isText = /^(text\/|application\/json)/i.test(this.#contentType);
    const data = isText ? await reply.text() : new Uint8Array(await reply.arrayBuffer());
    return {
      records: this.#recordsOf(data),
      next,
      isUpToDate: headers.has("stream-up-to-date"),
      isEnd: headers.has("stream-closed"),
    };
  }

  #recordsOf(data: string | Uint8Array): readonly unknown[] {
    if (data.length === 0) return [];
    return isJson(this.#contentType) ? JSON.parse(String(data)) : [data];
  }

  /** Yields the server-sent events of a reply. */
  async *#events(
    reply: Response,
  ): AsyncGenerator<{ readonly event: string | undefined; readonly data: string }> {
    const reader = reply.body?.getReader();
    const decoder = new TextDecoder();
    let text = "";
    try {
      for (;;) {
        const stop = this.#calls.limit(MAX_SILENCE_MS);
        const chunk = await reader?.read().finally(stop);
        if (chunk?.value === undefined) break;
        const blocks = (text + decoder.decode(chunk.value, { stream: true })).split("\n\n");
        text = blocks.pop() ?? "";
        for (const block of blocks) {
          const lines = block.split("\n");
          yield { event: fieldsOf(lines, "event")[0], data: fieldsOf(lines, "data").join("\n") };
        }
      }
    } finally {
      reader?.cancel().catch(() => undefined);
    }
  }
}

/** Sends the appends of one stream in order, one request at a time. */
class Writer {
  readonly #calls: Calls;
  readonly #settings: Settings;
  readonly #contentType: string;
  readonly #producer: string | undefined;
  /**
   * Epoch of the producer. The writer opened last has the highest epoch and fences off earlier
   * writers with the same name.
   */
  #epoch = Date.now();
  #number = 0;
  /**
   * True until a record may have been stored. Only while this is true does the writer respond to a
   * higher epoch on the server by taking a still higher epoch.
   */
  #isNew = true;
  #queue: Append[] = [];
  #isWriting = false;

  constructor(
    calls: Calls,
    settings: Settings,
    { contentType = JSON_TYPE, producer }: RecordStreamOptions,
  ) {
    this.#calls = calls;
    this.#settings = settings;
    this.#contentType = contentType;
    this.#producer = producer;
  }

  write(body: Append["body"]): Promise<void> {
    if (this.#queue.length >= this.#settings.maxQueued)
      return Promise.reject(new JindouError("queue_full"));
    const append = { ...deferred(), body };
    this.#queue.push(append);
    if (!this.#isWriting) void this.#writeAll();
    return append.promise;
  }

  async #writeAll(): Promise<void> {
    this.#isWriting = true;
    while (this.#queue.length > 0) {
      const appends = this.#nextAppends();
      try {
        await this.#send(appends);
        for (const { resolve } of appends) resolve();
      } catch (error) {
        // the refused request may have been stored earlier, so its number must not be used again
        if (!hasCode(error, "producer_fenced")) this.#beginEpoch();
        for (const { reject } of appends) reject(asJindouError(error, "connection_lost"));
      }
    }
    this.#isWriting = false;
    this.#calls.idle();
  }

  /** Removes the appends of the next request from the queue, and returns them. */
  #nextAppends(): readonly Append[] {
    let length = 0;
    const end = this.#queue.findIndex(({ body }, at) => {
      length += body?.length ?? 0;
      return at > 0 && (!isJson(this.#contentType) || body === undefined || length > MAX_JOINED);
    });
    const isClose = this.#queue[0]?.body === undefined;
    return this.#queue.splice(0, isClose ? 1 : end < 0 ? this.#queue.length : end);
  }

  async #send(appends: readonly Append[]): Promise<void> {
    const [body] = appends.map(({ body }) => body);
    const closes = body === undefined;
    const isJoined = !closes && isJson(this.#contentType);
    for (;;) {
      const call = {
        method: "POST",
        limitMs: this.#settings.timeouts.requestMs,
        headers: closes ? { "stream-closed": "true" } : this.#headers(),
        body: isJoined ? `[${appends.map(({ body }) => body).join()}]` : body,
      };
      try {
        await this.#calls.call(call, () => undefined);
        this.#calls.succeeded();
        this.#isNew = false;
        if (!closes) this.#number += 1;
        return;
      } catch (error) {
        const epoch = this.#isNew ? epochOf(error) : undefined;
        // if a proxy has removed the epoch header, `epoch` is 0
        if (epoch !== undefined && epoch >= this.#epoch) this.#epoch = epoch + 1;
        // the server no longer has earlier records of this writer
        else if (hasCode(error, "producer_gap") && this.#number > 0) this.#beginEpoch();
        else {
          if (!closes && this.#producer === undefined) throw error;
          this.#isNew = false;
          await this.#calls.failed(error);
        }
      }
    }
  }

  /** Begins a new epoch, whose first request has the number 0. */
  #beginEpoch(): void {
    this.#epoch += 1;
    this.#number = 0;
  }

  #headers(): Readonly<Record<string, string>> {
    const type = { "content-type": this.#contentType };
    if (this.#producer === undefined) return type;
    return {
      ...type,
      "producer-id": this.#producer,
      "producer-epoch": String(this.#epoch),
      "producer-seq": String(this.#number),
    };
  }
}

const NOT_A_STREAM = "The reply is not from a stream, or ended too early";

/** Returns false on React Native, where `fetch` resolves only after the whole body has arrived. */
function canStream(): boolean {
  return "body" in Response.prototype && typeof TextDecoder !== "undefined";
}

function isJson(contentType: string): boolean {
  return /^application\/json *(;|$)/i.test(contentType);
}

function fieldsOf(lines: readonly string[], name: string): readonly string[] {
  return lines
    .filter((line) => line.startsWith(`${name}:`))
    .map((line) => line.slice(name.length + 1).replace(/^ /, ""));
}

function bytesOfBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

/** Returns the body of an append. Throws `bad_option` if the data does not fit the content type. */
function encoded(data: unknown, contentType = JSON_TYPE): string | OwnBytes {
  // `JSON.stringify` returns undefined for functions and undefined
  const body = isJson(contentType)
    ? (JSON.stringify(data) as string | undefined)
    : typeof data === "string"
      ? data
      : (bytesOf(data)?.slice() as OwnBytes | undefined); // a copy has its own memory
  if (body !== undefined) return body;
  throw badOption(`append: the data cannot be sent as ${contentType}`);
}

/**
 * Returns the headers that identify the client's user. Values are encoded (RFC 8187), because a uid
 * or token may contain any characters.
 */
async function credentialOf({
  uid,
  token,
  deviceFlag,
}: Settings): Promise<Readonly<Record<string, string>>> {
  const extended = (text: string) =>
    `UTF-8''${encodeURIComponent(text).replace(/['()*]/g, (char) => `%${char.charCodeAt(0).toString(16)}`)}`;
  return {
    "x-uid*": extended(uid),
    "x-token*": extended(await token()),
    "x-device-flag": String(deviceFlag),
  };
}

async function refusalOf(reply: Response): Promise<JindouError> {
  const retryAfterMs = Number(reply.headers.get("retry-after")) * 1000 || 0;
  const status = `HTTP status ${reply.status}`;
  try {
    const { code, error: message = status } = (await reply.json()) as {
      readonly code: JindouError["code"];
      readonly error?: string;
    };
    if (typeof code === "string")
      return new JindouError(code, { message, retryAfterMs, cause: reply });
  } catch {
    // the body is not a JSON object
  }
  // the reply comes from a proxy
  return new JindouError("connection_lost", { message: status });
}

/**
 * Returns the producer's epoch on the server if a higher epoch fenced off this writer, `undefined`
 * for any other error.
 */
function epochOf(error: unknown): number | undefined {
  if (!hasCode(error, "producer_fenced")) return undefined;
  return Number((error.cause as Response).headers.get("producer-epoch")); // set by `refusalOf`
}
