// One viewer's picture of one stream by the rules of docs/protocol/native.md: a snapshot replaces
// the picture, an event must directly follow it, and shown content is never withdrawn. Throws on a
// gap, and on a repeat that no requested snapshot explains.

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
  /** Number of received events that stand for several events of the producer. */
  mergedCount = 0;
  #state = "active";
  #text = "";
  #nextIndex = 0;
  #startData = "";
  #endData: string | undefined;
  #notes: PictureNote[] = [];
  /**
   * Next index of the last snapshot that was a response. Events below it may still arrive and are
   * ignored.
   */
  #respondedIndex = 0;

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

  /** Applies a snapshot of a response or message. It may arrive before events that it includes. */
  applyResponse(snapshot: StreamSnapshot): void {
    if (snapshot.nextIndex < this.#nextIndex) return;
    this.replace(snapshot);
    this.#respondedIndex = snapshot.nextIndex;
  }

  /** Replaces the picture with a snapshot. The snapshot must contain everything in the picture. */
  replace(snapshot: StreamSnapshot): void {
    const { nextIndex, text, notes } = snapshot;
    if (nextIndex < this.#nextIndex)
      throw this.#fault(`a snapshot of ${nextIndex} events follows one of ${this.#nextIndex}`);
    if (!text.startsWith(this.#text))
      throw this.#fault("the snapshot changes the text shown before");
    this.#notes.forEach(({ index }, at) => {
      if (notes[at]?.index !== index) throw this.#fault(`the snapshot lacks the event ${index}`);
    });
    const picture = pictureOfSnapshot(snapshot);
    this.#state = picture.state;
    this.#text = text;
    this.#nextIndex = nextIndex;
    this.#startData = picture.startData;
    this.#endData = picture.endData;
    this.#notes = [...picture.notes];
  }

  /** Applies the next event. */
  apply({ type, data, stream }: ChannelEvent & { readonly stream: StreamPlace }): void {
    const { index, nextIndex, textOffset, state } = stream;
    if (nextIndex <= this.#respondedIndex) return;
    if (this.isEnded) throw this.#fault(`event ${index} follows the end`);
    if (index !== this.#nextIndex)
      throw this.#fault(`got event ${index} instead of ${this.#nextIndex}`);
    if (textOffset !== this.#text.length)
      throw this.#fault(`got text offset ${textOffset} instead of ${this.#text.length}`);
    if (nextIndex <= index) throw this.#fault(`event ${index} has the next index ${nextIndex}`);
    if ((type === STREAM_END) !== (state !== "active"))
      throw this.#fault(`${type} has the state ${state}`);
    if (nextIndex > index + 1) this.#assertMerged(type);
    this.#append(type, data);
    this.#nextIndex = nextIndex;
    this.#state = state;
  }

  #append(type: string, data: string): void {
    if (type === STREAM_CONTENT) this.#text += data;
    else if (type === STREAM_END) this.#endData = data;
    else if (type === STREAM_START) {
      if (this.#nextIndex !== 0) throw this.#fault("the stream starts twice");
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
    if (type !== STREAM_CONTENT) throw this.#fault(`an event of type ${type} was merged`);
  }

  #fault(problem: string): Error {
    return new Error(`stream ${this.#clientMsgNo}: ${problem}`);
  }
}
