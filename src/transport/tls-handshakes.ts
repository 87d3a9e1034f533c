// TLS handshakes on connections that were accepted without TLS, because a PROXY protocol header may
// precede the handshake. State: the connections whose handshake is in progress.

import type { Socket } from "node:net";
import { createServer, type Server, type TLSSocket } from "node:tls";
import type { Tls } from "./driver.ts";

interface HandshakeRules<Connection> {
  readonly timeoutMs: number;
  /** Protocols that ALPN may select. If the list is empty, the server ignores ALPN. */
  readonly alpn: readonly string[];
  /** Called with the decrypted stream. The streams of failed handshakes are destroyed. */
  secured(connection: Connection, stream: Socket): void;
}

export class TlsHandshakes<Connection> {
  readonly #server: Server;
  /**
   * Connections by the addresses of their sockets, because Node.js does not return the socket of a
   * decrypted stream.
   */
  readonly #pending = new Map<string, Connection>();

  constructor({ cert, key, ca, files: { passphrase } }: Tls, rules: HandshakeRules<Connection>) {
    this.#server = createServer({
      cert,
      key,
      ...(ca === undefined ? {} : { ca }),
      ...(passphrase === undefined ? {} : { passphrase }),
      requestCert: ca !== undefined,
      rejectUnauthorized: false,
      handshakeTimeout: rules.timeoutMs,
      ...(rules.alpn.length === 0 ? {} : { ALPNProtocols: [...rules.alpn] }),
    });
    this.#server.on("tlsClientError", (_error, stream) => stream.destroy());
    this.#server.on("secureConnection", (stream) => {
      const name = nameOf(stream);
      const connection = this.#pending.get(name);
      this.#pending.delete(name);
      if (connection === undefined || hasForeignCertificate(stream)) stream.destroy();
      else rules.secured(connection, stream);
    });
  }

  begin(socket: Socket, connection: Connection): void {
    const name = nameOf(socket); // the address is unknown after the close
    this.#pending.set(name, connection);
    socket.once("close", () => {
      // Before this event, a new connection with the same addresses may have replaced the entry.
      if (this.#pending.get(name) === connection) this.#pending.delete(name);
    });
    this.#server.emit("connection", socket);
  }
}

function hasForeignCertificate(stream: TLSSocket): boolean {
  const hasCertificate = Object.keys(stream.getPeerCertificate() ?? {}).length > 0;
  return hasCertificate && !stream.authorized;
}

/** Returns a key that is the same for a socket and for its decrypted stream. */
function nameOf({ remoteAddress, remotePort, localAddress }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress}`;
}
