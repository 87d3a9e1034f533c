// The options of client connections (section `client`). A schema only: no state, read by `config/`
// and by the documentation. Every key has a type, a default, a unit where it counts something, and
// a sentence.

import { Type } from "typebox";

/**
 * Section `client`: the listener that clients' sockets come in on, and the limits of each
 * connection.
 */
export const clientOptions = Type.Object(
  {
    listen: Type.String({
      default: "0.0.0.0:5200",
      minLength: 1,
      unit: "host:port",
      description:
        "Address that takes client sockets. Equal to `api.listen`: one listener serves both. Port 0 picks a free one.",
    }),
    tls: Type.Object(
      {
        certFile: Type.String({
          default: "",
          unit: "path",
          description: "Certificate chain in PEM. Empty: no TLS on this listener.",
        }),
        keyFile: Type.String({
          default: "",
          unit: "path",
          description: "Private key of the certificate in PEM.",
        }),
        caFile: Type.String({
          default: "",
          unit: "path",
          description:
            "Certificate authorities in PEM that a client certificate, where one is sent, must come from. It is no access control: clients without a certificate still get in. Empty: the system's own.",
        }),
        passphrase: Type.String({
          default: "",
          secret: true,
          description: "Passphrase of an encrypted private key.",
        }),
      },
      { additionalProperties: false },
    ),
    allowedOrigins: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      description:
        "Web origins whose pages may connect: exact origins (`https://chat.example.com`) or hosts with a wildcard (`*.example.com`). Empty: any. Clients that send no Origin header are not browsers and always pass.",
    }),
    authTimeoutMs: Type.Integer({
      default: 5000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description: "A socket that has not connected with a valid credential by then is closed.",
    }),
    idleTimeoutS: Type.Integer({
      default: 120,
      minimum: 8,
      maximum: 960,
      unit: "seconds",
      description:
        "A peer that neither sends nor answers pings for so long is closed, up to 4 seconds earlier because timers tick that coarsely.",
    }),
    maxFrameBytes: Type.Integer({
      default: 131_072,
      minimum: 1024,
      maximum: 16_777_216,
      unit: "bytes",
      description: "A larger incoming frame ends the connection.",
    }),
    maxBufferedBytes: Type.Integer({
      default: 1_048_576,
      minimum: 16_384,
      maximum: 1_073_741_824,
      unit: "bytes",
      description:
        "A connection with more unread bytes than this is closed as a slow reader; it may reconnect and resume.",
    }),
    maxFramesPerSecond: Type.Integer({
      default: 500,
      minimum: 0,
      maximum: 1_000_000,
      unit: "frames per second",
      description:
        "Sustained work of one connection. A small frame counts as one, other frames as what they cost: by their KiB, and by the messages, users and conversations that are read for them (the table under Rate in docs/protocol/native.md). 0: unlimited, also for users.",
    }),
    frameBurst: Type.Integer({
      default: 1000,
      minimum: 1,
      maximum: 10_000_000,
      unit: "frames",
      description:
        "Work that one connection may ask for at once before `maxFramesPerSecond` limits it. An app lists, resumes and scrolls when it opens and is quiet afterwards: raise this for large openings, not the rate.",
    }),
    userRateFactor: Type.Integer({
      default: 2,
      minimum: 0,
      maximum: 10_000,
      unit: "connections",
      description:
        "All connections of a user to this node may together do as much work as so many connections, by `maxFramesPerSecond` and `frameBurst`; a reconnect refills nothing. Raise it for users that are services with many connections. 0: unlimited.",
    }),
    maxStoredBytesPerSecond: Type.Integer({
      default: 1_048_576,
      minimum: 0,
      maximum: 1_073_741_824,
      unit: "bytes per second",
      description:
        "Bytes of stored messages, by the size of their frames, that a user may send through this node's sockets; ten times that at once. Messages that backends send over HTTP do not count. 0: unlimited.",
    }),
    maxInFlightSends: Type.Integer({
      default: 1024,
      minimum: 1,
      maximum: 1_000_000,
      unit: "messages",
      description:
        "Messages and other requests of one connection that may wait for their answer; beyond that they are refused as overloaded. Of those that read (history, conversations, streams, presence) 4 are answered at a time, of conversation lists one; the rest wait in line, also while the client leaves much unread.",
    }),
    resendAfterS: Type.Integer({
      default: 60,
      minimum: 0,
      maximum: 86_400,
      unit: "seconds",
      description:
        "A stored message that a client of WKProto, or of WuKongIM's form of JSON-RPC, does not acknowledge is sent again after so long to twice as long, and then up to four times more while the connection lives. At most 256 messages of a connection, with 1 MiB of payloads, wait for this; of more, the oldest are not sent again. Other clients resume instead. 0: never.",
    }),
    maxConnections: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 10_000_000,
      unit: "connections",
      description:
        "Client sockets this node holds; further ones are refused with 503. 0: as many as the system allows.",
    }),
    maxConnectionsPerUser: Type.Integer({
      default: 100,
      minimum: 0,
      maximum: 1_000_000,
      unit: "connections",
      description:
        "Sessions of one user on this node, and, counted apart, its readers of streams over HTTP. 0: unlimited.",
    }),
    maxResumeChannels: Type.Integer({
      default: 1000,
      minimum: 0,
      maximum: 100_000,
      unit: "channels",
      description: "Channels a client may name for resuming when it connects.",
    }),
  },
  { additionalProperties: false },
);
