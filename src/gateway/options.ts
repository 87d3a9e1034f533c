// Configuration schemas of the `client` section (client connections) and the `presence` section.

import { Type } from "typebox";

export const presenceOptions = Type.Object(
  {
    offlineDelayMs: Type.Integer({
      default: 2000,
      minimum: 0,
      maximum: 60_000,
      unit: "milliseconds",
      description:
        "Time from the end of a user's last session until the sessions that watch the user are notified that the user is offline. If the user comes back sooner, nothing is pushed. The push is not delayed if the client ended the session with a disconnect frame, if its device was logged out, or if the user was banned. Only pushes are delayed: all queries return the current state. 0 means no delay. The event `user.offline` for backends has its own delay, `events.presenceDelayMs`.",
    }),
  },
  { additionalProperties: false },
);

export const clientOptions = Type.Object(
  {
    listen: Type.String({
      default: "0.0.0.0:5200",
      minLength: 1,
      unit: "host:port",
      description:
        "Address on which client sockets are accepted. If it equals `api.listen`, one listener serves both. Port 0 selects a free port.",
    }),
    tls: Type.Object(
      {
        certFile: Type.String({
          default: "",
          unit: "path",
          description:
            "PEM file with the certificate chain. An empty value means that this listener does not use TLS.",
        }),
        keyFile: Type.String({
          default: "",
          unit: "path",
          description: "PEM file with the private key of the certificate.",
        }),
        caFile: Type.String({
          default: "",
          unit: "path",
          description:
            "PEM file with the certificate authorities against which a client certificate is checked if a client sends one. This is not access control: clients without a certificate are accepted. An empty value means the system's authorities.",
        }),
        passphrase: Type.String({
          default: "",
          secret: true,
          description: "Passphrase of the private key, if the key is encrypted.",
        }),
      },
      { additionalProperties: false },
    ),
    trustedProxies: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      description:
        "Proxies in front of this listener: networks in CIDR form (`10.0.0.0/8`, `fd00::/8`) or single addresses. If the peer of a connection is one of them, the client's address is the rightmost address in `X-Forwarded-For` that is not one of them, or the address in the header of the PROXY protocol, version 2. It is used for limits by address, for logs and in `/connz`. An empty list means that the client's address is always the address of the peer.",
    }),
    allowedOrigins: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      description:
        "Web origins whose pages may connect: exact origins as browsers send them (`https://chat.example.com`, `capacitor://localhost`, `tauri://localhost`, `chrome-extension://…`) or hosts with a wildcard (`*.example.com`). `null` allows pages without an origin: local files, but also sandboxed frames of every site. An empty list means that every origin may connect. Clients that send no Origin header are not browsers and are always accepted.",
    }),
    authTimeoutMs: Type.Integer({
      default: 5000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time within which a new socket must connect with a valid credential. Otherwise it is closed.",
    }),
    idleTimeoutS: Type.Integer({
      default: 56,
      minimum: 8,
      maximum: 960,
      unit: "seconds",
      description:
        "Time after which a peer that neither sends data nor answers pings is disconnected. A silent peer is sent a ping at most 16 seconds before that time (with the default, after about 40 seconds), so that proxies that close connections after 60 silent seconds keep the connection open. Timers tick every 4 seconds, so the peer may be disconnected up to 4 seconds earlier.",
    }),
    maxFrameBytes: Type.Integer({
      default: 163_840,
      minimum: 1024,
      maximum: 16_777_216,
      unit: "bytes",
      description:
        "Maximum size of an incoming frame. A larger frame is answered with the error `too_large`. Before the login, it closes the connection with 1009. A frame of more than twice this size closes the connection without a close frame (1006).",
    }),
    maxBufferedBytes: Type.Integer({
      default: 1_048_576,
      minimum: 16_384,
      maximum: 1_073_741_824,
      unit: "bytes",
      description:
        "Maximum number of unread bytes per connection. A connection that exceeds it is closed as a slow reader; the client may reconnect and resume.",
    }),
    maxBufferedBytesPerUser: Type.Integer({
      default: 8_388_608,
      minimum: 16_384,
      maximum: 1_099_511_627_776,
      unit: "bytes",
      description:
        "Maximum total number of unread bytes on one user's connections to this node. If it is exceeded, the user's connection with the most unread bytes is closed without a close frame; its client may reconnect and resume. At least `client.maxBufferedBytes`. The sum is checked each time an eighth of `client.maxBufferedBytes` has been published, so it may exceed the limit by that amount for each of the user's connections.",
    }),
    maxBufferedBytesTotal: Type.Integer({
      default: 268_435_456,
      minimum: 16_384,
      maximum: 1_099_511_627_776,
      unit: "bytes",
      description:
        "Maximum total number of unread bytes on all connections to this node. If it is exceeded, the connection with the most unread bytes is closed without a close frame; its client may reconnect and resume. At least `client.maxBufferedBytesPerUser`.",
    }),
    maxFramesPerSecond: Type.Integer({
      default: 500,
      minimum: 0,
      maximum: 1_000_000,
      unit: "frames per second",
      description:
        "Sustained rate of work per connection. A small frame counts as one. Larger or more expensive frames count as more: by their size, in blocks of 4 KiB, and by the messages, users and conversations that are read for them (see the table under Rate in docs/protocol/native.md). 0 means no limit, neither for a connection nor for a user.",
    }),
    frameBurst: Type.Integer({
      default: 1000,
      minimum: 1,
      maximum: 10_000_000,
      unit: "frames",
      description:
        "Amount of work that one connection may request at once before `maxFramesPerSecond` limits it. An app sends many requests when it is opened and few afterwards. If your app loads a lot when it is opened, raise this value instead of the rate.",
    }),
    userRateFactor: Type.Integer({
      default: 2,
      minimum: 0,
      maximum: 10_000,
      unit: "connections",
      description:
        "Limit on one user's work over all connections to this node, as a multiple of one connection's limits (`maxFramesPerSecond` and `frameBurst`). Reconnecting does not restore the budget. Raise it for users that are services with many connections. 0 means no limit.",
    }),
    maxStoredBytesPerSecond: Type.Integer({
      default: 1_048_576,
      minimum: 0,
      maximum: 1_073_741_824,
      unit: "bytes per second",
      description:
        "Sustained rate at which a user may send stored messages through this node's sockets, measured by frame size. Ten times this amount may be sent at once. Messages that backends send over HTTP do not count. 0 means no limit.",
    }),
    maxEventsPerSecond: Type.Integer({
      default: 20,
      minimum: 0,
      maximum: 1_000_000,
      unit: "events per second",
      description:
        "Maximum number of events (typing and the like) that one user may send per second through all sockets on this node. Each event also counts as work like a message (see `maxFramesPerSecond`). 0 means no limit.",
    }),
    maxInFlightSends: Type.Integer({
      default: 1024,
      minimum: 1,
      maximum: 1_000_000,
      unit: "messages",
      description:
        "Maximum number of messages and other requests from one connection that wait for a reply. Further requests are rejected as overloaded. Up to 4 read requests (history, conversations, members, streams, presence) run at the same time, but only one of them may list conversations or members. Further reads are queued. Reads also wait while the client has too many unread bytes.",
    }),
    resendAfterS: Type.Integer({
      default: 60,
      minimum: 0,
      maximum: 86_400,
      unit: "seconds",
      description:
        "Minimum time after which a stored message is sent again if the client has not acknowledged it. The first resend follows after one to two times this value. Up to four more resends follow while the connection is open. Applies only to WKProto clients and to clients of WuKongIM's JSON-RPC; other clients resume instead. A connection remembers at most 256 unacknowledged messages, and at most 1 MiB of their payloads; older messages are not sent again, and neither is the start of a stream. 0 means that messages are never sent again.",
    }),
    maxConnections: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 10_000_000,
      unit: "connections",
      description:
        "Maximum number of client sockets on this node. Further WebSocket handshakes are rejected with 503, and further TCP connections are closed. 0 means as many as the system allows.",
    }),
    maxConnectionsPerUser: Type.Integer({
      default: 100,
      minimum: 0,
      maximum: 1_000_000,
      unit: "connections",
      description:
        "Maximum number of sessions that one user may have on this node. The same limit applies separately to the user's clients that follow streams at /stream, and to those that follow streams at /v1/stream. 0 means no limit.",
    }),
    keepClosed: Type.Integer({
      default: 10_000,
      minimum: 0,
      maximum: 1_000_000,
      unit: "sessions",
      description:
        "Maximum number of closed sessions that this node keeps in memory, for at most 24 hours, so that an operator can see why a client was disconnected (`GET /connz?state=closed`). They contain the client's user id, address and device, but no token. The node also keeps refused connects, up to the same number and at most 1000. 0 means that none are kept.",
    }),
    maxResumeChannels: Type.Integer({
      default: 1000,
      minimum: 0,
      maximum: 100_000,
      unit: "channels",
      description: "Maximum number of channels that a client may resume when it connects.",
    }),
  },
  { additionalProperties: false },
);
