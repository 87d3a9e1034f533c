// One stream as this client has it: its text so far, which only grows, and who waits for more. State: that. It asks nobody for anything;
// streams.ts tells it what came.

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
import type { Stream, StreamEnd } from "./api.ts";
import type { JindouError } from "./errors.ts";
import { type Deferred, deferred } from "./waiting.ts";

/** Finds or makes the stream of a message that has one. */
export type StreamFor = (
  channel: ChannelRef,
  message: Message,
) => Stream | undefined;

/** How a stream stands. */
type Standing = Omit<StreamSnapshot, "key" | "channel" | "clientMsgNo">;

const BEFORE: Standing = {
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
  readonly #stop: () => Promise<StreamState>;
  readonly #finished = deferred<StreamEnd>();
  #now: Standing = BEFORE;
  #error: JindouError | undefined;
  /** Resolves with the next change; made when somebody waits. */
  #change: Deferred<void> | undefined;

  constructor(
    channel: ChannelRef,
    clientMsgNo: string,
    stop: () => Promise<StreamState>,
  ) {
    this.channel = { id: channel.id, type: channel.type };
    this.clientMsgNo = clientMsgNo;
    this.#stop = stop;
  }

  get fromUid(): string {
    return this.#now.fromUid;
  }

  get messageId(): number {
    return this.#now.messageId;
  }

  get messageSeq(): number {
    return this.#now.messageSeq;
  }

  get state(): StreamState {
    return this.#now.state;
  }

  get text(): string {
    return this.#now.text;
  }

  get startData(): string {
    return this.#now.startData;
  }

  get endData(): string | undefined {
    return this.#now.endData;
  }

  get notes(): readonly StreamNote[] {
    return this.#now.notes;
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

  cancel(): Promise<StreamState> {
    return this.#stop();
  }

  /** Takes over how the stream stands; returns the notes that are new. What is older than what is here changes nothing. */
  replace(snapshot: Standing): readonly StreamNote[] {
    const { nextIndex } = this.#now;
    if (snapshot.nextIndex < nextIndex) return [];
    this.#become(snapshot);
    return snapshot.notes.filter(({ index }) => index >= nextIndex);
  }

  /** Takes what follows directly. `gap`: something before it is missing, and nothing was taken. `old`: it is here already. */
  append(event: ChannelEvent): "taken" | "old" | "gap" {
    const { nextIndex, text } = this.#now;
    const place = event.stream;
    if (place === undefined || place.nextIndex <= nextIndex) return "old";
    if (place.index > nextIndex || place.textOffset > text.length) return "gap";
    const { state } = place;
    this.#become({
      ...this.#now,
      ...changeBy(event, place, this.#now),
      nextIndex: place.nextIndex,
      state,
    });
    return "taken";
  }

  /** It cannot be followed any more; harmless when it ended. */
  fail(error: JindouError): void {
    if (this.state !== "active" || this.#error !== undefined) return;
    this.#error = error;
    this.#finished.reject(error);
    this.#wake();
  }

  #become(now: Standing): void {
    this.#now = now;
    const { state, text } = now;
    if (state !== "active") this.#finished.resolve({ state, text });
    this.#wake();
  }

  #wake(): void {
    this.#change?.resolve();
    this.#change = undefined;
  }

  /** Reads from the text itself, so a slow reader costs nothing and gets larger pieces. */
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

/** What an event that follows directly changes. */
function changeBy(
  { type, data, fromUid, eventId, timestampMs }: ChannelEvent,
  { index, textOffset, messageSeq }: StreamPlace,
  { text, notes }: Standing,
): Partial<Standing> {
  if (index === 0) return { fromUid, messageSeq, startData: data };
  if (type === STREAM_END) return { endData: data };
  if (type === STREAM_CONTENT)
    return { text: text + data.slice(text.length - textOffset) }; // of merged content a part may be here
  const note = { index, textOffset, eventId, type, data, timestampMs };
  return { notes: [...notes, note] };
}
