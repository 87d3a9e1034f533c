// One stream as the client has received it, and its readers. Makes no requests: streams.ts passes
// snapshots and events to it.

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

  replace(snapshot: StreamFields): readonly StreamNote[] {
    const { nextIndex } = this.#fields;
    if (snapshot.nextIndex < nextIndex) return [];
    this.#set(snapshot);
    return snapshot.notes.filter(({ index }) => index >= nextIndex);
  }

  append(event: ChannelEvent): "applied" | "old" | "gap" {
    const { nextIndex, text } = this.#fields;
    const position = event.stream;
    if (position === undefined || position.nextIndex <= nextIndex) return "old";
    if (position.index > nextIndex || position.textOffset > text.length) return "gap";
    const { state } = position;
    this.#set({
      ...this.#fields,
      ...fieldsChangedBy(event, position, this.#fields),
      nextIndex: position.nextIndex,
      state,
    });
    return "applied";
  }

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

  /** A slow reader's next piece is all text it has not read. */
  async *#read(from: number): AsyncGenerator<string, void> {
    let offset = from;
    for (;;) {
      const { text } = this;
      if (offset < text.length) {
        const piece = text.slice(offset);
        offset = text.length;
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

function fieldsChangedBy(
  { type, data, fromUid, eventId, timestampMs }: ChannelEvent,
  { index, textOffset, messageSeq }: StreamPlace,
  { text, notes }: StreamFields,
): Partial<StreamFields> {
  if (index === 0) return { fromUid, messageSeq, startData: data };
  if (type === STREAM_END) return { endData: data };
  // merged content may overlap the text received so far
  if (type === STREAM_CONTENT) return { text: text + data.slice(text.length - textOffset) };
  const note = { index, textOffset, eventId, type, data, timestampMs };
  return { notes: [...notes, note] };
}
