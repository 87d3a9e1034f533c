// The state of one stream that the client follows, and the readers of the stream's text. Makes no
// requests: streams.ts passes in the snapshots and events.

import type { ChannelEvent, StreamNote, StreamPlace, StreamSnapshot } from "../broker/model.ts";
import { STREAM_CONTENT, STREAM_END } from "../broker/model.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import type { LiveStream, Stream } from "./api.ts";
import type { JindouError } from "./errors.ts";

type StreamIdentity = Pick<Stream, "channel" | "clientMsgNo" | "log">;
type StreamFields = Omit<Stream, keyof StreamIdentity>;

const DONE = { done: true, value: undefined } as const;

/** Function that calls one of the app's listeners. Must not throw. */
type CallListener = (listener: () => unknown) => void;

export class FollowedText implements LiveStream {
  readonly #finished = deferred<Stream>();
  readonly #firstState = deferred<Stream>();
  readonly #call: CallListener;
  readonly #listeners = new Set<() => unknown>();
  #stream: Stream;
  #isKnown = false;
  #error: JindouError | undefined;
  #change: Deferred<void> | undefined;

  constructor(stream: StreamIdentity, call: CallListener) {
    this.#call = call;
    this.#stream = {
      ...stream,
      fromUid: "",
      messageId: 0,
      messageSeq: 0,
      state: "active",
      text: "",
      nextIndex: 0,
      startData: "",
      endData: undefined,
      notes: [],
      truncated: false,
    };
  }

  readonly snapshot = (): Stream => this.#stream;

  readonly subscribe = (listener: () => unknown): (() => void) => {
    const registered = () => listener();
    this.#listeners.add(registered);
    return () => void this.#listeners.delete(registered);
  };

  ready(): Promise<Stream> {
    return this.#firstState.promise;
  }

  get finished(): Promise<Stream> {
    return this.#finished.promise;
  }

  [Symbol.asyncIterator](): AsyncIterableIterator<string> {
    return this.pieces();
  }

  /**
   * Yields the text in pieces. This method is not a generator, because a generator's `return` would
   * wait for the pending `next`.
   */
  pieces(from: "start" | "now" = "start"): AsyncIterableIterator<string> {
    const returned = deferred();
    let isReturned = false;
    // if `from` is `now`, the offset is -1 until the state of the stream is known
    let offset = from === "start" ? 0 : -1;
    if (offset < 0 && this.#isKnown) offset = this.#stream.text.length;
    const iterator: AsyncIterableIterator<string> = {
      next: async () => {
        while (!isReturned) {
          const { text, state } = this.#stream;
          if (offset < 0 && this.#isKnown) offset = text.length;
          if (offset >= 0 && offset < text.length) {
            const value = text.slice(offset); // a slow reader gets all unread text at once
            offset = text.length;
            return { done: false, value };
          }
          if (state !== "active") break;
          if (this.#error !== undefined) throw this.#error;
          this.#change ??= deferred();
          await Promise.race([this.#change.promise, returned.promise]);
        }
        return DONE;
      },
      return: async () => {
        isReturned = true;
        returned.resolve();
        return DONE;
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  replace(snapshot: StreamSnapshot | Stream): readonly StreamNote[] {
    const { nextIndex } = this.#stream;
    if (snapshot.nextIndex < nextIndex) return [];
    const { key: _, channel: __, ...fields } = snapshot as StreamSnapshot;
    this.#set(fields);
    return snapshot.notes.filter(({ index }) => index >= nextIndex);
  }

  append(event: ChannelEvent): "applied" | "old" | "gap" {
    const { nextIndex, text } = this.#stream;
    const position = event.stream;
    if (position === undefined || position.nextIndex <= nextIndex) return "old";
    if (position.index > nextIndex || position.textOffset > text.length) return "gap";
    const { state } = position;
    this.#set({
      ...fieldsChangedBy(event, position, this.#stream),
      nextIndex: position.nextIndex,
      state,
    });
    return "applied";
  }

  fail(error: JindouError): void {
    if (this.#stream.state !== "active" || this.#error !== undefined) return;
    this.#error = error;
    this.#finished.reject(error);
    this.#firstState.reject(error);
    this.#wake();
  }

  #set(fields: Partial<StreamFields>): void {
    this.#stream = { ...this.#stream, ...fields };
    this.#isKnown = true;
    this.#firstState.resolve(this.#stream);
    if (this.#stream.state !== "active") this.#finished.resolve(this.#stream);
    this.#wake();
    for (const listener of [...this.#listeners]) this.#call(listener);
  }

  #wake(): void {
    this.#change?.resolve();
    this.#change = undefined;
  }
}

function fieldsChangedBy(
  { type, data, fromUid, eventId, timestampMs }: ChannelEvent,
  { index, textOffset, messageSeq, truncated }: StreamPlace,
  { text, notes }: Stream,
): Partial<StreamFields> {
  if (index === 0) return { fromUid, messageSeq, startData: data };
  if (type === STREAM_END) return { endData: data };
  // merged content may overlap the text received so far
  if (type === STREAM_CONTENT) return { text: text + data.slice(text.length - textOffset) };
  const note = { index, textOffset, eventId, type, data, timestampMs };
  return { notes: [...notes, note], ...(truncated && { truncated }) };
}
