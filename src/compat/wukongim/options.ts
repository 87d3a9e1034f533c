// Schemas of the settings that exist only for clients and backends written for WuKongIM.

import { Type } from "typebox";

/** Properties that this room adds to the section `api`. */
export const apiProperties = {
  dialect: Type.Enum(["jindou", "wukongim"], {
    default: "jindou",
    description:
      "Format of replies and behaviour of a few calls. `wukongim` is compatible with backends written for WuKongIM (docs/http.md, section The wukongim dialect).",
  }),
};

/** Section `protocol`. Only WKProto has settings. */
export const protocolOptions = Type.Object(
  {
    wkproto: Type.Object(
      {
        encryption: Type.Boolean({
          default: true,
          description:
            "Whether payloads are encrypted and signed for clients of WuKongIM's binary protocol. WuKongIM's JavaScript SDK cannot connect without encryption. Without encryption, all members of a group share one encoded message, and clients must accept an empty server key. Use TLS in both cases, because the encryption of WKProto is weak.",
        }),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
