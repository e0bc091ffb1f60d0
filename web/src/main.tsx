import { render } from "preact";
import { setToken } from "./api/token";
import { App } from "./app";
import { takeTokenFromUrl } from "./state/navigation";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/components.css";
import "./styles/views.css";

const urlToken = takeTokenFromUrl();
if (urlToken !== null) setToken(urlToken);
render(<App />, document.getElementById("page")!);
