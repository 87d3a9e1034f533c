// Schema of the section `protocol` of the configuration: settings of the wire formats.

import { Type } from "typebox";

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
