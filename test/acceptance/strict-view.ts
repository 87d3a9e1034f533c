// One viewer's picture of one stream by the rules of docs/protocol/native.md: a snapshot replaces,
// an event must follow what is there, and what was shown is never taken back. State: the picture. A
// gap, or a repeat that no answer explains, throws; nothing is repaired.

import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamPlace,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import { type PictureNote, pictureOfSnapshot, type StreamPicture } from "./stream-picture.ts";

export class StrictView {
  readonly #clientMsgNo: string;
  /** Events that stood for several of the producer's. */
  mergedCount = 0;
  #state = "active";
  #text = "";
  #nextIndex = 0;
  #startData = "";
  #endData: string | undefined;
  #notes: PictureNote[] = [];
  /**
   * An answer told everything before this index, perhaps before the events that tell it as well.
   */
  #answeredIndex = 0;

  constructor(clientMsgNo: string) {
    this.#clientMsgNo = clientMsgNo;
  }

  get isEnded(): boolean {
    return this.#state !== "active";
  }

  get nextIndex(): number {
    return this.#nextIndex;
  }

  get picture(): StreamPicture {
    return {
      state: this.#state,
      text: this.#text,
      nextIndex: this.#nextIndex,
      startData: this.#startData,
      endData: this.#endData,
      notes: this.#notes,
    };
  }

  /**
   * A snapshot in answer to a question, or in a message: it does not come in turn with the events.
   */
  answer(snapshot: StreamSnapshot): void {
    if (snapshot.nextIndex < this.#nextIndex) return;
    this.replace(snapshot);
    this.#answeredIndex = snapshot.nextIndex;
  }

  /** A snapshot takes the place of what is there, which must be its beginning. */
  replace(snapshot: StreamSnapshot): void {
    const { nextIndex, text, notes } = snapshot;
    if (nextIndex < this.#nextIndex)
      throw this.#fault(`${nextIndex} events after ${this.#nextIndex}`);
    if (!text.startsWith(this.#text)) throw this.#fault("another text");
    this.#notes.forEach(({ index }, at) => {
      if (notes[at]?.index !== index) throw this.#fault(`no note ${index}`);
    });
    const picture = pictureOfSnapshot(snapshot);
    this.#state = picture.state;
    this.#text = text;
    this.#nextIndex = nextIndex;
    this.#startData = picture.startData;
    this.#endData = picture.endData;
    this.#notes = [...picture.notes];
  }

  /** The next event. */
  apply({ type, data, stream }: ChannelEvent & { readonly stream: StreamPlace }): void {
    const { index, nextIndex, textOffset, state } = stream;
    if (nextIndex <= this.#answeredIndex) return;
    if (this.isEnded) throw this.#fault(`event ${index} after the end`);
    if (index !== this.#nextIndex) throw this.#fault(`event ${index}, not ${this.#nextIndex}`);
    if (textOffset !== this.#text.length)
      throw this.#fault(`offset ${textOffset}, not ${this.#text.length}`);
    if (nextIndex <= index) throw this.#fault(`event ${index} has no length`);
    if ((type === STREAM_END) !== (state !== "active"))
      throw this.#fault(`${type} with state ${state}`);
    if (nextIndex > index + 1) this.#assertMerged(type);
    this.#take(type, data);
    this.#nextIndex = nextIndex;
    this.#state = state;
  }

  #take(type: string, data: string): void {
    if (type === STREAM_CONTENT) this.#text += data;
    else if (type === STREAM_END) this.#endData = data;
    else if (type === STREAM_START) {
      if (this.#nextIndex !== 0) throw this.#fault("a second start");
      this.#startData = data;
    } else
      this.#notes.push({
        index: this.#nextIndex,
        textOffset: this.#text.length,
        ...{ type, data },
      });
  }

  #assertMerged(type: string): void {
    this.mergedCount += 1;
    if (type !== STREAM_CONTENT) throw this.#fault(`${type} was merged`);
  }

  #fault(what: string): Error {
    return new Error(`stream ${this.#clientMsgNo}: ${what}`);
  }
}
