// The schema of the configuration section `log`.

import { Type } from "typebox";

export const logOptions = Type.Object(
  {
    level: Type.Enum(["trace", "debug", "info", "warn", "error", "fatal", "silent"], {
      default: "info",
      description:
        "Lowest level that is logged. Errors caused by clients are logged at `debug`, errors of the server at `error`.",
    }),
  },
  { additionalProperties: false },
);
