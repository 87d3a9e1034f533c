// Reads the PROXY protocol header at the start of a connection, if there is one. The bytes after
// the header stay in the socket.

import type { Socket } from "node:net";
import type { ProxyHeader } from "./proxy-header.ts";

const NOTHING = Buffer.alloc(0);
const NO_ADDRESS = new ArrayBuffer(0);

/**
 * Calls `done` once with the client's address. The address is empty if there is no header, or if
 * the header contains no address. Destroys the socket if the header is malformed, or if the peer
 * ends the connection first.
 */
export function readProxyHeader(
  socket: Socket,
  parse: (bytes: Buffer) => ProxyHeader,
  done: (address: ArrayBuffer) => void,
): void {
  let received: Buffer = NOTHING;
  const left = () => socket.destroy();
  const read = () => {
    const bytes: Buffer | null = socket.read();
    if (bytes === null) return;
    // The bytes of an incomplete header are kept here. If `unshift` put them back, the socket would
    // emit `readable` again immediately, in an endless loop.
    received = received === NOTHING ? bytes : Buffer.concat([received, bytes]);
    const header = parse(received);
    if (header.kind === "incomplete") return;
    if (header.kind === "malformed") return void socket.destroy();
    const size = header.kind === "header" ? header.bytes : 0;
    if (received.length > size) socket.unshift(received.subarray(size));
    socket.removeListener("readable", read);
    socket.removeListener("end", left);
    done(header.kind === "header" ? header.address : NO_ADDRESS);
  };
  socket.on("readable", read);
  socket.on("end", left);
}
