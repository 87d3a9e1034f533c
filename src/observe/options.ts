// The options of the log (section `log`). A schema only: no state, read by `config/` and by the documentation.

import { Type } from "typebox";

/** Section `log`. */
export const logOptions = Type.Object(
  {
    level: Type.Enum(
      ["trace", "debug", "info", "warn", "error", "fatal", "silent"],
      {
        default: "info",
        description:
          "Least severe level that is written. Mistakes of clients are `debug`, ours are `error`.",
      },
    ),
  },
  { additionalProperties: false },
);
