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
