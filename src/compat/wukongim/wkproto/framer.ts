// Divides the bytes of a TCP connection into WKProto packets. Each packet is one frame, so that
// rate limits treat it like a packet in a separate WebSocket message.

import { FrameError } from "../../../protocol/protocol.ts";
import type { Framer } from "../../../transport/types.ts";
import { PacketSplitter, startsWithConnect } from "./packets.ts";

export class PacketFramer implements Framer {
  readonly #packets: PacketSplitter;
  #isNew = true;

  constructor(maxPacketBytes: number) {
    this.#packets = new PacketSplitter(maxPacketBytes);
  }

  /**
   * Yields the packets in the bytes. If the next bytes are not a packet, or the packet is too
   * large, yields their beginning, which the codec refuses with a reply, and stops.
   */
  *frames(bytes: Uint8Array): Generator<Uint8Array, void> {
    if (this.#isNew && !startsWithConnect(bytes)) return yield bytes.subarray(0, 1);
    this.#isNew = false;
    try {
      yield* this.#packets.split(bytes);
    } catch (error) {
      if (!(error instanceof FrameError)) throw error;
      yield this.#packets.refusedHead;
    }
  }
}
