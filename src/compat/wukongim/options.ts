// Schemas of the settings that exist only for clients and backends written for WuKongIM.

import { Type } from "typebox";
import { tlsOptions } from "../../api/options.ts";

/** Properties of the section `api` that only backends written for WuKongIM need. */
export const apiProperties = {
  dialect: Type.Enum(["jindou", "wukongim"], {
    default: "jindou",
    description:
      "Format of replies and behaviour of a few calls. `wukongim` is compatible with backends written for WuKongIM (docs/http.md, section The wukongim dialect).",
  }),
};

/** Properties of the section `cluster` that only clients of WuKongIM need. */
export const clusterProperties = {
  wkprotoAddress: Type.String({
    default: "",
    maxLength: 512,
    pattern: "^([A-Za-z0-9._~\\[\\]:-]+:\\d{1,5})?$",
    description:
      "Address at which clients reach this node's `protocol.wkproto.listen`, as host:port. `GET /route` returns it as `tcp_addr`. An empty value means that no address is configured.",
  }),
};

/** Section `protocol`. Only WKProto has settings. */
export const protocolOptions = Type.Object(
  {
    wkproto: Type.Object(
      {
        listen: Type.String({
          default: "",
          unit: "host:port",
          description:
            "Address of the listener for clients that speak WKProto over TCP without WebSocket, such as WuKongIM's SDKs for Android, iOS and Flutter (`0.0.0.0:5100` is their usual port). Port 0 selects a free port. An empty value means that there is no such listener.",
        }),
        tls: tlsOptions,
        trustedProxies: Type.Array(Type.String({ minLength: 1 }), {
          default: [],
          description:
            "Proxies in front of `protocol.wkproto.listen`: networks in CIDR form or single addresses. If the peer of a connection is one of them, the client's address is the one in the header of the PROXY protocol, version 1 or 2 (nginx sends version 1). Such a proxy must send the header on every connection, because otherwise a client behind it could send a forged header. An empty list means that the client's address is always the address of the peer.",
        }),
        idleTimeoutS: Type.Integer({
          default: 180,
          minimum: 60,
          maximum: 960,
          unit: "seconds",
          description:
            "Time after which a client of `protocol.wkproto.listen` that sends nothing is disconnected. The server cannot ping such a client. WuKongIM's SDKs send a PING every 60 seconds.",
        }),
        allowUnauthenticated: Type.Boolean({
          default: false,
          description:
            "Whether `protocol.wkproto.listen` may be reachable from other machines although `auth.clients` is `none`. Every program that reaches the port can then connect as any user.",
        }),
        encryption: Type.Boolean({
          default: true,
          description:
            "Whether payloads are encrypted and signed for clients of WuKongIM's binary protocol. WuKongIM's JavaScript SDK cannot connect without encryption. Without encryption, all members of a group share one encoded message, and clients must accept an empty server key. Use TLS in both cases, because WKProto's encryption is weak.",
        }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
