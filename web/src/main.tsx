import { render } from "preact";
import { keepToken } from "./api/client";
import { App } from "./app";
import { tokenOfAddress } from "./lib/route";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/views.css";

const given = tokenOfAddress();
if (given !== null) keepToken(given);
render(<App />, document.getElementById("page")!);
