// One stream as this client has it, and its readers. State: the stream's fields; the text only
// grows. Makes no requests: streams.ts gives it snapshots and events.

import type {
  ChannelEvent,
  ChannelRef,
  Message,
  StreamNote,
  StreamPlace,
  StreamSnapshot,
  StreamState,
} from "../broker/model.ts";
import { STREAM_CONTENT, STREAM_END } from "../broker/model.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import type { Stream, StreamEnd } from "./api.ts";
import type { JindouError } from "./errors.ts";

/** The stream that a message starts, if any. */
export type StreamFor = (channel: ChannelRef, message: Message) => Stream | undefined;

type StreamFields = Omit<StreamSnapshot, "key" | "channel" | "clientMsgNo">;

const EMPTY: StreamFields = {
  fromUid: "",
  messageId: 0,
  messageSeq: 0,
  state: "active",
  text: "",
  nextIndex: 0,
  startData: "",
  endData: undefined,
  notes: [],
};

export class LiveStream implements Stream {
  readonly channel: ChannelRef;
  readonly clientMsgNo: string;
  readonly cancel: () => Promise<StreamState>;
  readonly #finished = deferred<StreamEnd>();
  #fields: StreamFields = EMPTY;
  #error: JindouError | undefined;
  /** Resolves at the next change; exists while a reader waits. */
  #change: Deferred<void> | undefined;

  constructor(channel: ChannelRef, clientMsgNo: string, cancel: () => Promise<StreamState>) {
    this.channel = { id: channel.id, type: channel.type };
    this.clientMsgNo = clientMsgNo;
    this.cancel = cancel;
  }

  get fromUid(): string {
    return this.#fields.fromUid;
  }

  get messageId(): number {
    return this.#fields.messageId;
  }

  get messageSeq(): number {
    return this.#fields.messageSeq;
  }

  get state(): StreamState {
    return this.#fields.state;
  }

  get text(): string {
    return this.#fields.text;
  }

  get startData(): string {
    return this.#fields.startData;
  }

  get endData(): string | undefined {
    return this.#fields.endData;
  }

  get notes(): readonly StreamNote[] {
    return this.#fields.notes;
  }

  get finished(): Promise<StreamEnd> {
    return this.#finished.promise;
  }

  [Symbol.asyncIterator](): AsyncGenerator<string, void> {
    return this.pieces();
  }

  pieces(from: "start" | "now" = "start"): AsyncGenerator<string, void> {
    return this.#read(from === "now" ? this.text.length : 0);
  }

  /** Replaces all fields unless the snapshot is older; returns the new notes. */
  replace(snapshot: StreamFields): readonly StreamNote[] {
    const { nextIndex } = this.#fields;
    if (snapshot.nextIndex < nextIndex) return [];
    this.#set(snapshot);
    return snapshot.notes.filter(({ index }) => index >= nextIndex);
  }

  /** Applies the event that is next. `gap`: an earlier one is missing. `old`: applied before. */
  append(event: ChannelEvent): "applied" | "old" | "gap" {
    const { nextIndex, text } = this.#fields;
    const place = event.stream;
    if (place === undefined || place.nextIndex <= nextIndex) return "old";
    if (place.index > nextIndex || place.textOffset > text.length) return "gap";
    const { state } = place;
    this.#set({
      ...this.#fields,
      ...changeBy(event, place, this.#fields),
      nextIndex: place.nextIndex,
      state,
    });
    return "applied";
  }

  /** It cannot be followed any longer. No effect when it has ended. */
  fail(error: JindouError): void {
    if (this.state !== "active" || this.#error !== undefined) return;
    this.#error = error;
    this.#finished.reject(error);
    this.#wake();
  }

  #set(fields: StreamFields): void {
    this.#fields = fields;
    const { state, text } = fields;
    if (state !== "active") this.#finished.resolve({ state, text });
    this.#wake();
  }

  #wake(): void {
    this.#change?.resolve();
    this.#change = undefined;
  }

  /** Readers share the text: a slow one needs no queue and gets larger pieces. */
  async *#read(from: number): AsyncGenerator<string, void> {
    let at = from;
    for (;;) {
      const { text } = this;
      if (at < text.length) {
        const piece = text.slice(at);
        at = text.length;
        yield piece;
      } else if (this.state !== "active") return;
      else if (this.#error !== undefined) throw this.#error;
      else {
        this.#change ??= deferred();
        await this.#change.promise;
      }
    }
  }
}

/** The fields that the next event changes. */
function changeBy(
  { type, data, fromUid, eventId, timestampMs }: ChannelEvent,
  { index, textOffset, messageSeq }: StreamPlace,
  { text, notes }: StreamFields,
): Partial<StreamFields> {
  if (index === 0) return { fromUid, messageSeq, startData: data };
  if (type === STREAM_END) return { endData: data };
  if (type === STREAM_CONTENT) return { text: text + data.slice(text.length - textOffset) }; // merged content may overlap
  const note = { index, textOffset, eventId, type, data, timestampMs };
  return { notes: [...notes, note] };
}
